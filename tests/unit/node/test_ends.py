"""The end of parts on nodes that do not report it: the head decides by its own record and clock."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.node.liar import Liar, never_over
from tests.support.node.world import HEAD, WORKER, World, eventually, lives

pytestmark = pytest.mark.slow

PACE = {"roll_beat": 0.1, "roll_silent": 0.8, "roll_lost": 1.5, "part_start": 20.0}
LONG = 600.0


def record(world: World, **addresses: str) -> None:
    """Write the members with their names."""
    rows = [{"name": name, "address": at, "gpus": 2, "leaving": False} for name, at in addresses.items()]
    world._write(world.state / "cluster.json", json.dumps({"v": 1, "members": rows}))


def become(world: World, generation: str, phase: str, detail: str = "") -> None:
    """Wait until this is what is reported."""

    def there() -> object:
        one = world.status.serve if world.status else None
        return one and (one.generation, one.phase) == (generation, phase) and detail in one.detail

    eventually(there, f"{generation} {phase} {detail}", 40.0)


@pytest.fixture
def lied(world: World) -> Iterator[tuple[World, Liar]]:
    """A model on a head and on a worker that never reports an end."""
    world.pace |= PACE
    yield from _lied(world)


@pytest.fixture
def waited(world: World) -> Iterator[tuple[World, Liar]]:
    """The same, where the head's limit is far away."""
    world.pace |= {**PACE, "serve_stop": LONG}
    yield from _lied(world)


def _lied(world: World) -> Iterator[tuple[World, Liar]]:
    record(world, gpu1=HEAD, gpu2=WORKER)
    world.start_without_ray(joins=False)
    eventually(lambda: world.status, "its status")
    with closing(Liar(world, never_over(), "gpu2", WORKER)) as liar:
        world.want("one", backend="mp")
        world.phase("ready")
        yield world, liar


# fault: serving/node/start.py: return "overdue" if late else "runs" → return "runs"
# fault: serving/node/start.py: if before and (one.left or not one.over): → if False:
# fault: serving/node/replica_controller.py: self._parts.complain(f"{start.placed.deployment.name}{start.overdue}") → pass
# fault: serving/node/replica_controller.py: set_phase("stopping", f"{start.ending}{unended(waits)}") → set_phase("stopping", start.ending)
def test_a_worker_that_reports_no_end_holds_up_only_what_needs_it(lied: tuple[World, Liar]) -> None:
    """It kept the head's GPUs from every model, for good."""
    world, _ = lied
    world.want("two", backend="mp", ranks={HEAD: 2})
    become(world, "one", "stopping", "; its part has not ended on gpu2")
    become(world, "two", "ready")
    assert not lives(world.attempts[0]["pid"])
    assert world.status
    assert world.status.roll
    assert world.status.roll.error == "model; its part has not ended on gpu2"
    world.want("three", backend="mp")
    become(world, "three", "waiting", "the last start has not ended on gpu2")
    assert len(world.attempts) == 2


# fault: serving/node/parts.py: taken = any(one.holds and → taken = any(
def test_the_gpus_of_the_head_are_free_once_its_own_part_has_ended(waited: tuple[World, Liar]) -> None:
    world, _ = waited
    row = {**world.placed("two", backend="mp", ranks={HEAD: 2}, name="other"), "index": 1}
    world._write(world.state / "wanted.json", json.dumps({"v": 3, "deployments": [row]}))

    def other() -> object:
        rows = {one.index: one for one in world.status.replicas} if world.status else {}
        assert 1 not in rows or rows[1].phase != "failed"
        return len(rows) == 2 and rows[0].phase == "stopping" and rows[1].phase == "ready"

    eventually(other, "the other model beside the end of the first", 60.0)


# fault: serving/node/start.py: ((members and at not in members) or not → (not
def test_a_host_that_has_left_the_cluster_is_not_waited_for(waited: tuple[World, Liar]) -> None:
    world, _ = waited
    record(world, gpu1=HEAD)
    world.want("two", backend="mp", ranks={HEAD: 2})
    become(world, "two", "ready")


# fault: serving/node/start.py: or not self._roll.alive(at)): → ):
def test_a_dead_node_is_not_waited_for_where_another_gives_its_name(waited: tuple[World, Liar]) -> None:
    world, liar = waited
    liar.close()
    with closing(Liar(world, never_over(), "gpu2", "127.0.0.77", "127.0.0.3")):
        world.want("two", backend="mp", ranks={HEAD: 2})
        become(world, "two", "ready")


# fault: serving/node/start.py: return "overdue" if late else "runs" → return "overdue" if late and one else "runs"
# fault: serving/node/replica_controller.py: course.fail(f"{what}{why}{start.overdue}", → course.fail(f"{what}{why}",
def test_a_worker_that_reports_no_part_fails_the_start_and_no_other(world: World) -> None:
    world.pace |= {**PACE, "part_start": 1.0}
    record(world, gpu1=HEAD, gpu2=WORKER)
    world.start_without_ray(joins=False)
    eventually(lambda: world.status, "its status")
    with closing(Liar(world, lambda _: (), "gpu2", WORKER)):
        world.plan({"loading": True})
        world.want("one", backend="mp")
        become(world, "one", "failed", "no part of vLLM runs on gpu2; its part has not ended on gpu2")
        world.plan({})
        world.want("two", backend="mp", ranks={HEAD: 2})
        become(world, "two", "ready")
