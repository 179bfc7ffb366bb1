"""What is served follows the hosts: after a load that failed, while one is under way, and at a rollback."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from tests.support.figures import record
from tests.support.sim import lab, make, oracle
from tests.support.sim.faults import Call, Fault, Script
from tests.support.sim.make import inventory_of as inventory
from tests.support.sim.world import World
from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.serving.cluster.up import Planned
from vllm_cluster.wire.order import TAKEN, WANTED, read_order

BEFORE, FEWER = inventory(1, 2, 3), inventory(1, 2)


def asks(model: str, **more: Any) -> lab.Verb:
    """`vcluster serve --yes MODEL`, with options."""
    return partial(lab.do_serve, model=model, **more)


GOOD, BAD = lab.do_serve, asks("no/such")


def files(world: World) -> dict[str, bytes]:
    """The state of the head on gpu1."""
    return world.machines["gpu1"].volumes["vcluster-lab-state"].files


def asked(world: World) -> str:
    """The model of the request on the head, empty where there is none."""
    raw = files(world).get(WANTED)
    wanted = read_order(raw).wanted if raw else None
    return wanted.deployment.model if wanted else ""


def begin(world: World, verb: lab.Verb, model: str, words: Inventory = BEFORE) -> None:
    """Ask for a model, and close the laptop once the head has the request."""
    lab.run(world, words, verb, Script(by_words=lambda _: Fault.KILLED if asked(world) == model else None))
    world.settle(0.1)


def planned(world: World) -> Planned:
    """What `up` would do after gpu3 has left."""

    made: Planned = lab.succeed(world, FEWER, lab.do_look).value
    return made


def settled(world: World, words: Inventory) -> tuple[str, str]:
    """Model and phase, once everything that was under way is over."""
    world.settle(30)
    serve = lab.succeed(world, words, lab.do_status).value.head.serve
    return serve.model, serve.phase


@pytest.fixture
def world() -> World:
    """Three hosts, of which gpu3 leaves in most cases, and the cluster up on them."""
    made = make.world((2, 2, 2))
    with lab.inside(made):
        lab.succeed(made, BEFORE, lab.do_up)
    return made


@pytest.mark.promise("P36")
def test_what_serves_and_is_asked_for_again_is_what_a_failure_goes_back_to(world: World) -> None:
    with lab.inside(world):
        lab.succeed(world, BEFORE, GOOD)
        assert isinstance(lab.run(world, BEFORE, BAD).error, HostError)
        assert settled(world, BEFORE) == ("org/model", "ready")
        lab.succeed(world, BEFORE, GOOD)
        assert isinstance(lab.run(world, BEFORE, asks("no/other")).error, HostError)
        assert settled(world, BEFORE) == ("org/model", "ready")


# fault: serving/consent.py: again = all(one not in moved or one.name in names for one in stops) → again = True
@pytest.mark.promise("P33")
def test_a_plan_shows_that_a_load_that_no_longer_fits_is_not_started_again(world: World) -> None:
    with lab.inside(world):
        lab.succeed(world, BEFORE, GOOD)
        begin(world, asks("no/such", tp=2, pp=3), "no/such")
        assert planned(world).stops.consequence.endswith("is not served again")


@pytest.mark.promise("P33")
def test_a_plan_that_changes_only_what_a_failure_goes_back_to_stops_nothing(world: World) -> None:
    with lab.inside(world):
        lab.succeed(world, BEFORE, GOOD)
        begin(world, asks("org/big", hosts=("gpu1", "gpu2")), "org/big")
        made = planned(world)
        assert any("where org/big cannot be served" in one.text for one in made.plan.operations())
        assert made.stops.served == ()


# fault: serving/ask_head.py: self._number = _current_number( → _current_number(
@pytest.mark.promise("P33")
def test_serve_is_followed_while_another_run_changes_what_a_failure_goes_back_to(world: World) -> None:
    ended: list[lab.Outcome] = []

    def up_meanwhile(_: Call) -> None:
        if asked(world) == "org/big" and not ended and world.machines["gpu1"].lock is None:
            ended.append(lab.Outcome(world.script))
            ended[0] = lab.succeed(world, FEWER, lab.do_up)

    with lab.inside(world):
        lab.succeed(world, BEFORE, GOOD)
        lab.succeed(world, BEFORE, asks("org/big", hosts=("gpu1", "gpu2")), Script(hook=up_meanwhile))
        assert ended and ended[0].operations
        assert settled(world, FEWER) == ("org/big", "ready")


# fault: serving/serve/rollback.py: (there := _fitted(found, cluster, own, others, model)) → (there := (found,))
@pytest.mark.promise("P33")
@pytest.mark.parametrize("failed", [False, True])
def test_rollback_does_not_take_what_is_served_in_another_layout_for_an_earlier_model(
    world: World, failed: bool
) -> None:
    with lab.inside(world):
        lab.succeed(world, BEFORE, asks("org/first"))
        lab.succeed(world, BEFORE, GOOD)
        if failed:
            assert isinstance(lab.run(world, BEFORE, BAD).error, HostError)
            settled(world, BEFORE)
        lab.succeed(world, FEWER, lab.do_up)
        assert settled(world, FEWER) == ("org/model", "ready")
        lab.succeed(world, FEWER, lab.do_rollback)
        assert settled(world, FEWER) == ("org/first", "ready")


@pytest.mark.promise("P33", "P36")
def test_a_load_that_fails_while_up_runs_is_not_tried_again() -> None:
    world, replaced = make.world((2, 2, 2, 2)), inventory(1, 2, 4)
    world.machines["gpu4"].images.clear()
    failed: list[bool] = []

    def fail_meanwhile(call: Call) -> None:
        if call.host == "gpu4" and call.changes and not failed:
            failed.append(True)
            world.settle(30)
            assert json.loads(files(world)[TAKEN])["failed"]["name"] == "no/such"

    with lab.inside(world):
        lab.succeed(world, BEFORE, lab.do_up)
        lab.succeed(world, BEFORE, asks("org/model", hosts=("gpu1", "gpu2")))
        begin(world, asks("no/such", hosts=("gpu1", "gpu2")), "no/such")
        lab.succeed(world, replaced, lab.do_up, Script(hook=fail_meanwhile))
        assert failed
        assert settled(world, replaced) == ("org/model", "ready")
        results = [json.loads(line)["result"] for line in files(world)["results.jsonl"].splitlines()]
        assert results.count("failed") == 1


# fault: kernel/plan/followed.py: deployments=(known.asked,) if known.asked else ()) → deployments=())
@pytest.mark.promise("P33")
@pytest.mark.parametrize("raw", [b"", b"{", b'{"v": 1, "epoch": 2, "serve": {"mod'])
def test_what_the_head_took_follows_where_a_power_cut_broke_the_request(world: World, raw: bytes) -> None:
    with lab.inside(world):
        lab.succeed(world, BEFORE, GOOD)
        files(world)[WANTED] = raw
        assert any("TP=2 × PP=2" in one.text for one in planned(world).plan.operations())


CHANGES = {
    "a host leaves": (inventory(1, 2, 3), inventory(1, 2)),
    "two hosts change places": (inventory(1, 2), inventory(1, 3)),
    "the head moves": (inventory(1, 2), inventory(2, 1)),
    "the head moves and a host leaves": (inventory(1, 2, 3), inventory(2, 1)),
}


def serving_at_last(world: World, words: Inventory) -> Any:
    """What is served once everything that was under way is over."""
    world.settle(30)
    return lab.succeed(world, words, lab.do_status).value.head.serve


# fault: kernel/plan/followed.py: return taken.back_to, None → return asked, None
@pytest.mark.promise("P33", "P36")
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_served_instead_follows_a_change(change: str) -> None:
    before, after = CHANGES[change]
    world = make.world((2, 2, 2))
    with lab.inside(world):
        for verb in (lab.do_up, lab.do_serve):
            lab.succeed(world, before, verb)
        assert isinstance(lab.run(world, before, BAD).error, HostError)
        assert serving_at_last(world, before).instead_of.name == "no/such"
        lab.succeed(world, after, lab.do_up)
        served = serving_at_last(world, after)
        assert (served.model, served.phase) == ("org/model", "ready")
        # What failed was not tried again.
        lines = world.machines[after.head_name].volumes["vcluster-lab-state"].files["results.jsonl"].splitlines()
        assert [json.loads(line)["result"] for line in lines].count("failed") == 1
        oracle.converged(world, after)
        oracle.untouched(lab.run(world, after, lab.do_up))
    record("P33", f"sim: {change} after a serve that failed", "what is served in its place is served again", True)


# fault: kernel/plan/followed.py: back_to, moved = _fit(spare, cluster) if spare else (None, []) → back_to, moved = spare, []
@pytest.mark.promise("P33", "P36")
@pytest.mark.parametrize("change", CHANGES)
def test_a_load_that_fails_after_a_change_goes_back_to_hosts_that_are_there(change: str) -> None:
    before, after = CHANGES[change]
    world = make.world((2, 2, 2))
    with lab.inside(world):
        for verb in (lab.do_up, lab.do_serve):
            lab.succeed(world, before, verb)
        begin(world, BAD, "no/such", before)
        lab.succeed(world, after, lab.do_up)
        served = serving_at_last(world, after)
        assert (served.model, served.phase, served.instead_of.name) == ("org/model", "ready", "no/such")
    record("P33", f"sim: {change} during a load that fails", "what was ready before is served again", True)
