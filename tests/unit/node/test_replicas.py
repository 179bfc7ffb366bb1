"""Several replicas of a model: each is started, ended and healed by itself, and a change goes from one to the next."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.support.node.replicas import BAD, Two
from tests.support.node.world import HEAD, WORKER, World, eventually, lives

pytestmark = pytest.mark.slow


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


# fault: serving/node/start.py: several = deployment.replicas > 1 or index > 0 → several = False
def test_each_line_of_vllm_names_its_replica(world: World) -> None:
    two = Two(world)
    for fake in (world.fake, world.fake2):
        two.plans(fake, {"lines": ["a line\n"]})
    world.start_without_ray()
    two.want("one")
    logs = [world.log, world.folder / "worker.log"]
    eventually(lambda: all(f"[vllm_{n}] a line" in log.read_text() for n, log in enumerate(logs)), "a line of each", 60)


# fault: serving/node/replicas.py: if rolls and changes and not one.requests.settled: → if not rolls:
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


def results(world: World) -> list[tuple[str, int, int]]:
    """What the history has: result, replica, and how many there are."""
    path = world.state / "results.jsonl"
    rows = map(json.loads, path.read_text().splitlines() if path.exists() else ())
    return [(row["result"], row["replica"], row["replicas"]) for row in rows]


# fault: serving/node/kept_order.py: "replicas": asked.deployment.replicas if asked else 1, → "replicas": 1,
def test_the_history_has_which_of_how_many_is_ready(two: Two) -> None:
    assert sorted(results(two.world)) == [("ready", 0, 2), ("ready", 1, 2)]


def test_where_the_first_cannot_be_served_the_others_stay(two: Two) -> None:
    world, (_, second) = two.world, two.pids
    two.plans(world.fake, {}, BAD, {})
    two.want("two")
    back = [("one-0", "ready"), ("one-1", "ready")]
    eventually(lambda: len(world.attempts) == 3 and [(r.generation, r.phase) for r in two.rows] == back, "back")
    assert two.rows[0].instead_of
    assert (lives(second), len(world.followers)) == (True, 1)


# fault: serving/node/start.py: or self.at(start.placed.replica, part) != self.address → or False
@pytest.mark.parametrize("which", [0, 1])
def test_one_that_ends_is_started_again_and_the_other_stays(two: Two, which: int) -> None:
    """Of one on another host than the head the failure names the host."""
    pids = two.pids
    os.kill(pids[which], signal.SIGKILL)
    eventually(lambda: two.rows[which].attempt == 2 and two.rows[which].phase == "ready", "started again")
    assert [lives(pid) for pid in pids] == [which != 0, which != 1]
    assert two.rows[1 - which].attempt == 1
    assert two.rows[which].failure
    assert two.rows[which].failure.summary == f"vLLM ended with exit code 137{(' on gpu2' if which else '')}"


# fault: serving/node/replicas.py: elif path.name != READY: → else:
def test_one_that_is_not_wanted_any_more_ends_and_the_other_stays(two: Two) -> None:
    """What was ready there stays: a model that was stopped can be served again by a rollback."""
    first, second = two.pids
    row = two.row(0, "one-0", 1)
    two.world._write(two.world.state / "wanted.json", json.dumps({"v": 3, "deployments": [row]}))
    eventually(lambda: not lives(second) and not two.rows, "one replica alone")
    assert lives(first)
    assert [path.name for path in (two.world.state / "replica-1").iterdir()] == ["ready.json"]
    assert two.world.status
    assert two.world.status.serve
    assert two.world.status.serve.attempt == 1


# fault: serving/node/replicas.py: (placed := wanted.wanted or one.requests.served) → (placed := wanted.wanted)
# fault: serving/node/replicas.py: *(index for index, one in served.items() if one)} → *()}
@pytest.mark.parametrize("good", [True, False])
def test_one_that_is_not_wanted_any_more_stays_until_the_others_have_changed(two: Two, *, good: bool) -> None:
    world, (_, second) = two.world, two.pids
    two.plans(world.fake, {}, {"loading": True} if good else BAD, {})
    row = two.row(0, "two-0", 1)
    world._write(world.state / "wanted.json", json.dumps({"v": 3, "deployments": [row]}))
    if good:
        eventually(lambda: len(world.attempts) == 2, "the new one")
        assert lives(second)
        (world.fake / "loaded").touch()
        eventually(lambda: not lives(second) and not two.rows, "one replica alone")
        assert world.status
        assert world.status.serve
        assert (world.status.serve.generation, world.status.serve.phase) == ("two-0", "ready")
    else:
        back = [("one-0", "ready"), ("one-1", "ready")]
        eventually(lambda: len(world.attempts) == 3 and [(r.generation, r.phase) for r in two.rows] == back, "back")
        assert lives(second)


def test_both_are_served_again_by_the_next_program(two: Two) -> None:
    assert two.world.stop() == 0
    two.world.start_without_ray(joins=False)
    eventually(lambda: len(two.world.attempts) == 2 and len(two.world.followers) == 2, "started again")
    two.ready("one")
