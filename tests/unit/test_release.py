"""What is released is whole: built here, looked into, and refused where something is missing."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tools.release import build, problems


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist and the wheel of this checkout."""
    return build(tmp_path_factory.mktemp("dist"))


@pytest.mark.slow
def test_the_release_of_this_checkout_is_whole(built: tuple[Path, Path]) -> None:
    assert problems(*built) == []


@pytest.mark.slow
def test_a_wheel_that_lacks_a_recipe_or_holds_tests_is_reported(built: tuple[Path, Path], tmp_path: Path) -> None:
    sdist, wheel = built
    broken = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(broken, "w") as target:
        for name in source.namelist():
            if not name.endswith(("lease.sh", "_docker/Dockerfile")):
                target.writestr(name, source.read(name))
        target.writestr("tests/conftest.py", "")
    assert problems(sdist, broken) == [
        "the wheel lacks vllm_cluster/_docker/Dockerfile",
        "the wheel lacks vllm_cluster/kernel/lease/lease.sh",
        "the wheel holds tests/conftest.py",
    ]
