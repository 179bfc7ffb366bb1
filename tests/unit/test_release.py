"""What is released is whole: built here, looked into, and refused where something is missing."""

from __future__ import annotations

import configparser
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tools.release import build, install_each_way, problems, write_sums


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist and the wheel of this checkout."""
    return build(tmp_path_factory.mktemp("dist"))


@pytest.mark.slow
def test_the_release_of_this_checkout_is_whole(built: tuple[Path, Path]) -> None:
    assert problems(*built) == []


# fault: tools/release.py: if not name.startswith(own) or "/tests/" in name → if not name.startswith(own)
@pytest.mark.slow
def test_a_wheel_that_lacks_a_recipe_or_holds_tests_is_reported(built: tuple[Path, Path], tmp_path: Path) -> None:
    sdist, wheel = built
    broken = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(broken, "w") as target:
        for name in source.namelist():
            if not name.endswith(("lease.sh", "_docker/Dockerfile")):
                target.writestr(name, source.read(name))
        for name in ("tests/run.py", "vllm_cluster/features/pull/tests/unit/test_plan.py"):
            target.writestr(name, "")
    assert problems(sdist, broken) == [
        "the wheel lacks vllm_cluster/_docker/Dockerfile",
        "the wheel lacks vllm_cluster/kernel/lease/lease.sh",
        "the wheel holds tests/run.py",
        "the wheel holds vllm_cluster/features/pull/tests/unit/test_plan.py",
    ]


def test_the_sums_are_those_that_are_checked(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("b.whl", "a.tar.gz")]
    for file in files:
        file.write_bytes(file.name.encode())
    write_sums(files, tmp_path)
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    done = subprocess.run(check, cwd=tmp_path, check=False, text=True, capture_output=True)
    assert (done.stdout, done.stderr, done.returncode) == ("a.tar.gz: OK\nb.whl: OK\n", "", 0)
    files[0].write_bytes(b"another")
    assert subprocess.run(check, cwd=tmp_path, check=False, capture_output=True).returncode == 1


@pytest.mark.slow
def test_the_wheel_has_the_program_under_both_names(built: tuple[Path, Path]) -> None:
    """`uvx vllm-cluster` runs the one that is named as the package."""
    with zipfile.ZipFile(built[1]) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        found = configparser.ConfigParser()
        found.read_string(archive.read(name).decode())
    programs = dict(found["console_scripts"])
    assert programs == dict.fromkeys(("vcluster", "vllm-cluster"), "vllm_cluster.cli.main:main")


@pytest.mark.deep
@pytest.mark.slow
def test_the_wheel_is_installed_by_uv_and_by_pipx(built: tuple[Path, Path], tmp_path: Path) -> None:
    """Into an empty home, from the index that this machine has; both programs answer, and are removed."""
    venv.create(tmp_path / "tools", with_pip=False)
    tools = tmp_path / "tools" / "bin"
    pip = [sys.executable, "-m", "pip", "--python", str(tools / "python"), "install", "--quiet", "uv", "pipx"]
    subprocess.run(pip, check=True, timeout=250)
    install_each_way(built[1], tmp_path, tools)
