"""The model that was ready before comes back by itself where the next one cannot be served."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.node.world import HEAD, WORKER, World, eventually
from vllm_cluster.serving.node.kept_order import Requests

pytestmark = pytest.mark.slow

BAD = {"lines": ["OSError: no/such is not a local folder\n"], "exit": 1}


# fault: serving/node/kept_order.py: * (1 + MARGIN) - age, age / 2) → - age, 0)
# fault: serving/node/kept_order.py: if row.result == "ready" and row.seconds: → if row.seconds:
# fault: serving/node/kept_order.py: MAX_STARTS = 5 → MAX_STARTS = 1
@pytest.mark.parametrize(("age", "seconds"), [(0, 50), (30, 20), (40, 20), (200, 100)])
def test_clients_wait_longer_than_the_longest_of_the_last_starts(tmp_path: Path, age: float, seconds: int) -> None:
    """Those who came back at its end, and 5 s later, had no try left in a start that took a third longer."""
    starts = [("ready", 40.0), ("ready again", 9000.0), ("restarted", None), ("back", 400.0), ("ready", 26.0)]
    rows = [json.dumps({"model": "", "result": result, "seconds": took}) for result, took in starts]
    (tmp_path / "results.jsonl").write_text("\n".join(rows))
    assert Requests(tmp_path).seconds_left(age) == seconds
    assert Requests(tmp_path / "new").seconds_left(0) == 75


# fault: serving/node/kept_order.py: with suppress(RefusedDocument): → with suppress(IndexError):
@pytest.mark.parametrize(
    "odd",
    [
        *(
            f'{{"model": "", "result": "ready", "seconds": {number}}}'
            for number in ("NaN", "1e400", "-5", "1e300", '"9"')
        ),
        "[" * 100_000,
        "\0" * 20,
        "[]",
        '{"result": "ready"}',
    ],
    ids=lambda odd: odd[:48],
)
def test_a_row_of_the_history_that_cannot_be_hides_no_other(tmp_path: Path, odd: str) -> None:
    """An infinite time ended the node's program, and so did a row of brackets."""
    good = json.dumps({"model": "", "result": "ready", "seconds": 40.0})
    (tmp_path / "results.jsonl").write_text("\n".join([odd, good, odd]))
    assert Requests(tmp_path).seconds_left(0) == 50


def ask(world: World, number: int, generation: str | None, **changed: Any) -> None:
    """Write a request as a laptop does: each counts one up."""
    world.want(generation, {"epoch": number, "by": "ada@laptop"}, name=generation or "", **changed)


def results(world: World) -> list[tuple[int, str, str]]:
    """What the head wrote about each request: its number, its model's name and what became of it."""
    path = world.state / "results.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [(line["request"], line["name"], line["result"]) for line in lines]


# fault: serving/node/kept_order.py: back = kept.back_to if kept.asked.deployment.rollback else None → back = None
def test_the_last_ready_one_comes_back(world: World) -> None:
    world.plan({}, BAD, {})
    world.start()
    ask(world, 1, "good")
    assert world.phase("ready", generation="good").rollback_to is None
    ask(world, 2, "bad")
    back = world.phase("ready", generation="good", attempt=1)
    back = eventually(lambda: (s := world.status) and s.serve and s.serve.request == 2 and s.serve, "request 2")
    back = world.phase("ready", generation="good")
    assert (back.request, back.instead_of.name) == (2, "bad")
    assert back.instead_of.summary == "vLLM ended with exit code 1: OSError: no/such is not a local folder"
    assert 0 < back.away_seconds < 300
    assert results(world) == [(1, "good", "ready"), (2, "bad", "failed"), (2, "bad", "back")]
    assert {json.loads(line)["user"] for line in (world.state / "results.jsonl").read_text().splitlines()} == {
        "ada@laptop"
    }


def test_it_is_served_in_the_next_container_too_and_the_bad_one_is_not_tried_again(world: World) -> None:
    world.plan({}, BAD, {})
    world.start()
    ask(world, 1, "good")
    world.phase("ready", generation="good")
    ask(world, 2, "bad")
    eventually(lambda: len(results(world)) == 3, "back")
    world.stop()
    world.start()
    again = world.phase("ready", generation="good", attempt=1)
    assert again.instead_of.name == "bad"
    assert len(world.attempts) == 4
    eventually(lambda: len(results(world)) == 5, "the restart")
    assert results(world)[3:] == [(2, "good", "restarted"), (2, "good", "ready again")]


def lines(world: World) -> list[tuple[str, str]]:
    """What was written of the last request, and why."""
    rows = [json.loads(line) for line in (world.state / "results.jsonl").read_text().splitlines()]
    return [(row["result"], row["summary"]) for row in rows]


def test_each_restart_is_written_with_its_reason(world: World) -> None:
    # A killed vLLM is known by its end: on a busy machine 0.4 s of silence would come first.
    world.pace |= {"restarts": 2, "health_dead": 30.0}
    world.start()
    ask(world, 1, "one")
    for attempt in (1, 2):
        world.phase("ready", attempt=attempt)
        world.nodes({HEAD: 2, WORKER: 2}, ids={WORKER: f"id-{attempt}"})
    world.phase("ready", attempt=3)
    os.kill(world.attempts[2]["pid"], signal.SIGKILL)
    world.phase("failed")
    lost = f"Ray has lost {WORKER}"
    again = ("ready again", "")
    killed = "vLLM ended with exit code 137; started 3 times within 60 min: no further attempts"
    assert lines(world) == [("ready", ""), ("restarted", lost), again, ("restarted", lost), again, ("gave up", killed)]
    # It is not started again in the next container, and nothing is written that is not so.
    world.stop()
    world.start()
    world.ray("up")
    world.phase("failed")
    assert len(lines(world)) == 6


def test_the_same_request_again_tries_the_bad_one_again(world: World) -> None:
    world.plan({}, BAD, {}, BAD, {})
    world.start()
    ask(world, 1, "good")
    world.phase("ready", generation="good")
    ask(world, 2, "bad")
    eventually(lambda: len(results(world)) == 3, "back")
    ask(world, 3, "bad")
    eventually(lambda: len(results(world)) == 5, "back again")
    assert results(world)[3:] == [(3, "bad", "failed"), (3, "bad", "back")]
    assert world.phase("ready", generation="good").request == 3


def test_a_failed_request_asked_again_is_tried_again_and_then_left_alone(world: World) -> None:
    world.plan(BAD, {})
    world.start()
    ask(world, 1, "one")
    world.phase("failed")
    ask(world, 2, "one")
    assert world.phase("ready").generation == "one"
    ask(world, 3, "one")
    eventually(lambda: world.status and world.status.serve and world.status.serve.request == 3, "request 3")
    assert len(world.attempts) == 2


@pytest.mark.parametrize("how", ["no rollback", "nothing before", "stopped before"])
def test_nothing_comes_back(world: World, how: str) -> None:
    world.start()
    if how != "nothing before":
        ask(world, 1, "good")
        world.phase("ready")
    if how == "stopped before":
        ask(world, 2, None)
        eventually(lambda: world.status and world.status.serve is None, "stopped")
    world.plan(BAD)
    ask(world, 3, "bad", rollback=how != "no rollback")
    failed = world.phase("failed", generation="bad")
    assert (failed.instead_of, failed.rollback_to) == (None, None)


def test_what_was_not_ready_yet_is_not_gone_back_to(world: World) -> None:
    """good, then two in a row that cannot be served, the second while the first still loads: good is back."""
    world.plan({}, {"loading": True}, BAD, {})
    world.start()
    ask(world, 1, "good")
    world.phase("ready", generation="good")
    ask(world, 2, "slow")
    world.runs(2)
    assert world.phase("importing", generation="slow").rollback_to == "good"
    ask(world, 3, "bad")
    eventually(lambda: results(world)[-1][2] == "back", "back")
    back = world.phase("ready", generation="good")
    assert (back.request, back.instead_of.name) == (3, "bad")
    assert [row[2] for row in results(world)] == ["ready", "replaced", "failed", "back"]


# fault: serving/node/replica_controller.py: self.requests.ready(course.seconds_to_ready if started else None) →
def test_what_runs_and_is_asked_for_again_is_ready_and_gone_back_to(world: World) -> None:
    world.plan({}, BAD, {})
    world.start()
    ask(world, 1, "good")
    world.phase("ready", generation="good")
    ask(world, 2, "good")
    eventually(lambda: (2, "good", "ready") in results(world), "request 2 is ready")
    ask(world, 3, "bad")
    eventually(lambda: results(world)[-1][2] == "back", "back")
    assert len(world.attempts) == 3


def test_what_was_ready_is_kept_for_later(world: World) -> None:
    world.start()
    for number, name in enumerate("abcdefa", 1):
        ask(world, number, name)
        world.phase("ready", generation=name)
    kept = json.loads((world.state / "ready.json").read_text())["requests"]
    assert [request["deployment"]["name"] for request in kept] == ["c", "d", "e", "f", "a"]


# fault: wire/order.py: (self.generation, self.deployment.replicas) == (other.generation, other.deployment.replicas) → self.generation == other.generation
def test_what_was_ready_in_three_replicas_is_kept_beside_the_same_in_one(world: World) -> None:
    """What runs is the same in this replica, so it is not started again; each is a request to go back to."""
    world.start()
    ask(world, 1, "same", replicas=3)
    world.phase("ready", generation="same")
    ask(world, 2, "same")
    eventually(lambda: (2, "same", "ready") in results(world), "request 2 is ready")
    kept = json.loads((world.state / "ready.json").read_text())["requests"]
    assert ([request["deployment"]["replicas"] for request in kept], len(world.attempts)) == ([3, 1], 1)


# fault: serving/node/kept_order.py: back_to = order.back_to[0] if order.back_to else None → pass
def test_after_a_change_of_the_cluster_it_goes_back_to_what_fits(world: World) -> None:
    """What was ready before is on hosts that have left: the request brings what is served where it cannot be."""
    world.plan({}, BAD, {})
    world.start()
    ask(world, 1, "good")
    world.phase("ready", generation="good")
    fits = world.placed("fits", name="fits")
    world.want("bad", {"epoch": 2, "by": "ada@laptop", "back_to": [fits]}, name="bad")
    back = world.phase("ready", generation="fits")
    assert (back.name, back.instead_of.name) == ("fits", "bad")


def test_after_a_change_of_the_cluster_nothing_is_gone_back_to_where_nothing_fits(world: World) -> None:
    world.plan({}, BAD)
    world.start()
    ask(world, 1, "good")
    world.phase("ready", generation="good")
    world.want("bad", {"epoch": 2, "by": "ada@laptop", "back_to": []}, name="bad")
    failed = world.phase("failed", generation="bad")
    assert (failed.instead_of, failed.rollback_to) == (None, None)


@pytest.mark.parametrize("kept", ["{", "[]", '{"number": 1}', '{"ready": false}'])
def test_what_another_wrote_in_place_of_the_request_that_was_taken_counts_as_none(world: World, kept: str) -> None:
    (world.state / "request.json").write_text(kept)
    world.start()
    ask(world, 2, "good")
    assert world.phase("ready", generation="good").request == 2


def test_what_is_gone_back_to_must_be_whole(world: World) -> None:
    world.start()
    ask(world, 1, "good")
    world.phase("ready", generation="good")
    world.want("bad", {"epoch": 2, "back_to": [{"name": "half"}]}, name="bad")
    eventually(lambda: world.status and world.status.error, "an error")
    assert world.phase("ready", generation="good").request == 1
