"""The node's durations hold where the host's clock is stepped under it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.node.world import World
from vllm_cluster.serving.node import timing

# Each look at the wall clock finds it an hour further on.
STEPPED = """
import itertools, time
real, steps = time.time, itertools.count()
time.time = lambda: real() + 3600 * next(steps)
"""


@pytest.mark.slow
def test_no_duration_is_of_the_wall_clock(world: World) -> None:
    """Waiting for GPUs, being ready, being replaced, and being back: none takes an hour."""
    (world.folder / "python" / "sitecustomize.py").write_text(STEPPED)
    world.plan({}, {"loading": True}, {"exit": 1}, {})
    world.start()
    for number, (name, phase) in enumerate((("good", "ready"), ("slow", "importing"), ("bad", "ready")), 1):
        world.want(name, {"epoch": number, "by": "ada@laptop"}, name=name)
        if name == "bad":
            world.until(lambda: "back" in results(world), "back")
        served = world.phase(phase)
        if name == "good":
            assert 0 < served.seconds_to_ready < 1800
    assert 0 < served.away_seconds < 1800
    assert all(seconds < 1800 for _, seconds in served.phases)
    rows = results(world)
    assert [rows["ready"]["seconds"] < 1800, rows["back"]["seconds"] < 1800] == [True, True]
    assert 0 <= int(rows["replaced"]["summary"].split()[-2]) < 1800


def results(world: World) -> dict[str, Any]:
    """What became of the requests, by the word for it."""
    path = world.state / "results.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["result"]: row for row in map(json.loads, lines)}


def test_a_mark_holds_until_the_host_is_started_again() -> None:
    marked = json.loads(json.dumps(timing.mark()))
    passed = timing.since(marked)
    assert passed is not None and 0 <= passed < 1800
    assert timing.since(["another", marked[1]]) is None


@pytest.mark.parametrize("marked", [None, 1700000000.0, [], ["x"], ["", 1.0], [1, 2], {"a": 1}])
def test_an_invalid_mark_has_no_duration(marked: object) -> None:
    assert timing.since(marked) is None
