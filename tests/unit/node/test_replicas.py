"""Several replicas of a model: each is started, ended and healed by itself, and a change goes from one to the next."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.node.world import HEAD, WORKER, World, eventually, lives
from tests.support.ports import free_port

pytestmark = pytest.mark.slow

PACE = {"roll_beat": 0.1, "roll_silent": 0.8, "roll_lost": 1.5, "part_start": 20.0, "drain": 2.0}
BAD = {"lines": ["OSError: no/such is not a local folder\n"], "exit": 1}


class Two:
    """Two replicas of a model, one on each of two nodes."""

    def __init__(self, world: World) -> None:
        self.world, self.api = world, free_port()
        world.pace |= PACE
        world.fake2.mkdir()
        (world.fake2 / "stray").write_bytes((world.fake / "stray").read_bytes())
        self.plans(world.fake2, {})

    def plans(self, fake: Path, *plans: dict[str, Any]) -> None:
        """What vLLM does on a node, run after run."""
        (fake / "plans.json").write_text(json.dumps(plans))

    def row(self, index: int, generation: str, number: int = 2) -> dict[str, Any]:
        """One replica as a laptop writes it."""
        at = {"address": HEAD, "host": "gpu1"} if index == 0 else {"address": WORKER, "host": "gpu2"}
        found = self.world.placed(generation, backend="mp", ranks={HEAD: 2}, replicas=number)
        found["replica"] |= {"parts": [{**found["replica"]["parts"][0], **at}]} | ({"api": self.api} if index else {})
        return {**found, "index": index}

    def want(self, generation: str, number: int = 2) -> None:
        """Ask for so many replicas."""
        rows = [self.row(index, f"{generation}-{index}", number) for index in range(number)]
        text = json.dumps({"v": 4, "deployments": rows})
        self.world._write(self.world.state / "wanted.json", text)

    def ready(self, generation: str) -> None:
        """Wait until both are."""
        names = [f"{generation}-0", f"{generation}-1"]
        eventually(lambda: [(one.generation, one.phase) for one in self.rows] == [(n, "ready") for n in names], "both")

    @property
    def rows(self) -> tuple[Any, ...]:
        """What is reported of each."""
        return tuple(self.world.status.replicas) if self.world.status else ()

    @property
    def pids(self) -> tuple[int, int]:
        """The processes of the last start of each."""
        return self.world.attempts[-1]["pid"], self.world.followers[-1]["pid"]


@pytest.fixture
def two(world: World) -> Two:
    """Two replicas that are ready."""
    found = Two(world)
    world.start_without_ray()
    found.want("one")
    found.ready("one")
    return found


def test_each_is_started_on_its_own_node(two: Two) -> None:
    assert [(one.index, one.ranks) for one in two.rows] == [(0, {HEAD: 2}), (1, {WORKER: 2})]
    assert two.world.status
    assert two.world.status.serve == two.rows[0]
    assert f"--port={two.api}" in two.world.followers[0]["argv"]


# fault: serving/node/replicas.py: waits = waits or (rolls → waits = waits and (rolls
def test_the_next_one_changes_once_the_one_before_is_ready(two: Two) -> None:
    world, (first, second) = two.world, two.pids
    two.plans(world.fake, {}, {"loading": True})
    two.want("two")
    eventually(lambda: len(world.attempts) == 2, "the first of the new ones")
    assert [(one.generation, one.phase == "ready") for one in two.rows] == [("two-0", False), ("one-1", True)]
    assert (lives(first), lives(second), len(world.followers)) == (False, True, 1)
    (world.fake / "loaded").touch()
    two.ready("two")
    assert (lives(second), len(world.followers)) == (False, 2)


# fault: serving/node/replicas.py: return bool(one and one.answers), index → return False, index
def test_the_one_that_answers_is_not_taken_away_while_the_other_starts(two: Two) -> None:
    world, (first, second) = two.world, two.pids
    two.plans(world.fake2, {}, {"loading": True}, {"loading": True})
    os.kill(second, signal.SIGKILL)
    eventually(lambda: len(world.followers) == 2, "started again")
    two.want("two")
    eventually(lambda: two.rows[1].generation == "two-1" and len(world.followers) == 3, "the second changes first")
    assert lives(first)
    assert (two.rows[0].generation, two.rows[0].phase) == ("one-0", "ready")
    (world.fake2 / "loaded").touch()
    two.ready("two")


def test_where_the_first_cannot_be_served_the_others_stay(two: Two) -> None:
    world, (_, second) = two.world, two.pids
    two.plans(world.fake, {}, BAD, {})
    two.want("two")
    back = [("one-0", "ready"), ("one-1", "ready")]
    eventually(lambda: len(world.attempts) == 3 and [(r.generation, r.phase) for r in two.rows] == back, "back")
    assert two.rows[0].instead_of
    assert (lives(second), len(world.followers)) == (True, 1)


@pytest.mark.parametrize("which", [0, 1])
def test_one_that_ends_is_started_again_and_the_other_stays(two: Two, which: int) -> None:
    pids = two.pids
    os.kill(pids[which], signal.SIGKILL)
    eventually(lambda: two.rows[which].attempt == 2 and two.rows[which].phase == "ready", "started again")
    assert [lives(pid) for pid in pids] == [which != 0, which != 1]
    assert two.rows[1 - which].attempt == 1


def test_one_that_is_not_wanted_any_more_ends_and_the_other_stays(two: Two) -> None:
    first, second = two.pids
    row = two.row(0, "one-0", 1)
    two.world._write(two.world.state / "wanted.json", json.dumps({"v": 3, "deployments": [row]}))
    eventually(lambda: not lives(second) and not two.rows, "one replica alone")
    assert lives(first)
    assert not (two.world.state / "replica-1").exists()
    assert two.world.status
    assert two.world.status.serve
    assert two.world.status.serve.attempt == 1


def test_both_are_served_again_by_the_next_program(two: Two) -> None:
    assert two.world.stop() == 0
    two.world.start_without_ray(joins=False)
    eventually(lambda: len(two.world.attempts) == 2 and len(two.world.followers) == 2, "started again")
    two.ready("one")
