"""P28: an engine that looks alive and is not. The node's real program, with a fake vLLM that fails on command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.attack import attack
from tests.support.node.world import HEAD, World

pytestmark = pytest.mark.promise


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("completion", "what"),
    [
        ("die", "an engine that dies of its first request behind a 200 /health"),
        ("error", "an engine that answers its first request with 500 behind a 200 /health"),
        ("empty", "an engine that answers without a token behind a 200 /health"),
    ],
)
def test_healthy_is_not_ready(world: World, completion: str, what: str) -> None:
    with attack("P28", f"{what} (fake vLLM)") as measured:
        world.plan({"completion": completion})
        world.start()
        world.want("one")
        failed = world.phase("failed")
        assert (failed.ready_at, failed.seconds_to_ready) == (None, None)
        measured.figure = f"never ready; named: {failed.first_failure.summary[:80]}"


def test_a_missing_worker_is_waited_for(world: World) -> None:
    with attack("P28", "a worker is missing (fake Ray)") as measured:
        world.nodes({HEAD: 2})
        world.start()
        world.want("one")
        detail = world.phase("waiting", detail="GPUs 2/4").detail
        assert world.attempts == []
        measured.figure = f"never started; named: {detail}"
