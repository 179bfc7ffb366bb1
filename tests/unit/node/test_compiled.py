"""Compiled code is kept by image: that of the image that runs and of the one before it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.node.world import World
from vllm_cluster.serving.node.files import keep_compiled


def images(state: Path) -> set[str]:
    """Those of which compiled code is kept."""
    return {path.name for path in (state / "compiled").iterdir()}


def test_an_image_of_long_ago_is_forgotten(tmp_path: Path) -> None:
    for moment, image in enumerate(("one", "two", "one", "three")):
        keep_compiled(tmp_path, image)
        (tmp_path / "compiled" / image / "kernel.so").write_text(image)
        os.utime(tmp_path / "compiled" / image, (moment, moment))
    # What was used last counts, not what was made last.
    assert images(tmp_path) == {"one", "three"}
    assert (tmp_path / "compiled" / "one" / "kernel.so").read_text() == "one"
    assert (tmp_path / "compiled" / "one").stat().st_mode & 0o777 == 0o700


# fault: serving/node/files.py: [path for path in folder.iterdir() if path.name != current] → list(folder.iterdir())
def test_a_clock_that_was_put_back_costs_the_current_image_nothing(tmp_path: Path) -> None:
    for image, moment in (("one", 4e9), ("two", 5e9)):
        keep_compiled(tmp_path, image)
        os.utime(tmp_path / "compiled" / image, (moment, moment))
    (tmp_path / "compiled" / "three").mkdir()
    (tmp_path / "compiled" / "three" / "kernel.so").write_text("three")
    keep_compiled(tmp_path, "three")
    assert images(tmp_path) == {"two", "three"}
    assert (tmp_path / "compiled" / "three" / "kernel.so").exists()


# fault: serving/node/files.py: except OSError: → except KeyError:
def test_a_disk_that_takes_nothing_costs_the_cache_alone(tmp_path: Path) -> None:
    """The node starts without it, and takes nothing away."""
    (tmp_path / "compiled").write_text("not a folder")
    keep_compiled(tmp_path, "one")
    assert (tmp_path / "compiled").read_text() == "not a folder"


@pytest.mark.slow
def test_it_outlives_the_container(world: World) -> None:
    world.start(VCLUSTER_COMPILED="one")
    world.ray("up")
    kept = world.state / "compiled" / "one" / "kernel.so"
    kept.write_text("one")
    world.stop()
    world.start(VCLUSTER_COMPILED="one")
    world.ray("up")
    assert kept.read_text() == "one"
