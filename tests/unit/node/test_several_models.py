"""Several models of one head: each is started, changed and ended by itself, and the others serve on."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from tests.support.node.replicas import BAD, Two
from tests.support.node.world import World, eventually, lives

pytestmark = pytest.mark.slow


def row(two: Two, index: int, generation: str, number: int, **changed: Any) -> dict[str, Any]:
    """One of two models, a on the head's GPUs and b on those of the other node; `number` is the order that asked."""
    found = two.row(index, generation, 1)
    found["deployment"] |= {"name": "ab"[index], **changed}
    return {**found, "asked": number}


def ask(two: Two, epoch: int, *rows: dict[str, Any]) -> None:
    """Write an order, as a laptop does."""
    two.world._write(two.world.state / "wanted.json", json.dumps({"v": 5, "epoch": epoch, "deployments": rows}))


def shown(two: Two) -> list[tuple[str, str, int]]:
    """The name, the phase and the number of the order, by model."""
    if two.rows:
        return [(one.name, one.phase, one.request) for one in two.rows]
    serve = two.world.status.serve if two.world.status else None
    return [(serve.name, serve.phase, serve.request)] if serve else []


@pytest.fixture
def two(world: World) -> Two:
    """One model that is ready."""
    found = Two(world)
    world.start_without_ray()
    ask(found, 1, row(found, 0, "a1", 1))
    eventually(lambda: shown(found) == [("a", "ready", 1)], "the first model")
    return found


BOTH = [("a", "ready", 1), ("b", "ready", 2)]


# fault: wire/order.py: number = found.asked or self.epoch if found else self.epoch → number = self.epoch
def test_another_one_leaves_it_as_it_is(two: Two) -> None:
    ask(two, 2, row(two, 0, "a1", 1), row(two, 1, "b1", 2))
    eventually(lambda: shown(two) == BOTH, "both models")
    assert lives(two.pids[0])
    assert (len(two.world.attempts), len(two.world.followers)) == (1, 1)
    results = [json.loads(line) for line in (two.world.state / "results.jsonl").read_text().splitlines()]
    assert [(one["name"], one["request"], one["result"]) for one in results] == [("a", 1, "ready"), ("b", 2, "ready")]


def test_the_front_sends_each_request_by_its_model(two: Two) -> None:
    ask(two, 2, row(two, 0, "a1", 1), row(two, 1, "b1", 2))
    eventually(lambda: shown(two) == BOTH, "both models")
    routes = json.loads((two.world.state / "front-routes.json").read_text())["deployments"]
    assert [(one["name"], [each["state"] for each in one["replicas"]]) for one in routes] == [
        ("a", ["ready"]),
        ("b", ["ready"]),
    ]


def test_one_that_is_stopped_leaves_the_other_also_where_it_was_the_first(two: Two) -> None:
    ask(two, 2, row(two, 0, "a1", 1), row(two, 1, "b1", 2))
    eventually(lambda: shown(two) == BOTH, "both models")
    first, second = two.pids
    ask(two, 3, row(two, 1, "b1", 2))
    eventually(lambda: shown(two) == [("b", "ready", 2)], "the second model alone")
    assert (lives(first), lives(second)) == (False, True)


# fault: serving/node/replicas.py: if name in waits or → if waits or
def test_one_that_does_not_get_ready_holds_up_no_change_of_the_other(two: Two) -> None:
    two.plans(two.world.fake2, {"loading": True})
    ask(two, 2, row(two, 0, "a1", 1), row(two, 1, "b1", 2))
    eventually(lambda: len(two.world.followers) == 1, "the second begins")
    ask(two, 3, row(two, 0, "a2", 3), row(two, 1, "b1", 2))
    eventually(lambda: shown(two)[0] == ("a", "ready", 3), "the first has changed")


def test_one_that_ends_is_started_again_and_the_other_stays(two: Two) -> None:
    ask(two, 2, row(two, 0, "a1", 1), row(two, 1, "b1", 2))
    eventually(lambda: shown(two) == BOTH, "both models")
    first, second = two.pids
    os.kill(second, signal.SIGKILL)
    eventually(lambda: two.rows[1].attempt == 2 and shown(two) == BOTH, "started again")
    assert lives(first)


# fault: serving/node/kept_order.py: if kept.back_to and not kept.failed and any( → if kept.back_to and False and any(
def test_nothing_comes_back_onto_the_gpus_of_another(two: Two) -> None:
    """What was ready before has its GPUs no more once another model was given them."""
    two.plans(two.world.fake, {}, {"loading": True, **BAD}, {})
    moved = row(two, 0, "a2", 2)
    moved["replica"]["parts"][0] |= {"devices": [0], "gpus": 1}
    ask(two, 2, moved)
    eventually(lambda: len(two.world.attempts) == 2, "the next version begins")
    beside = row(two, 0, "b1", 3) | {"index": 1}
    beside["deployment"]["name"] = "b"
    beside["replica"] = {**beside["replica"], "api": two.api}
    beside["replica"]["parts"][0] |= {"devices": [1], "gpus": 1}
    ask(two, 3, moved, beside)
    eventually(lambda: len(shown(two)) == 2 and shown(two)[1][:2] == ("b", "ready"), "the other model")
    (two.world.fake / "loaded").touch()
    eventually(lambda: shown(two)[0][:2] == ("a", "failed"), "failed, with nothing in its place")
    assert two.rows[0].instead_of is None
    assert shown(two)[1][:2] == ("b", "ready")
