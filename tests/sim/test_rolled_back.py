"""The cluster changes after a `serve` that failed, or while one is being loaded: what is served follows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.figures import record
from tests.support.sim import lab, make, oracle
from tests.support.sim.faults import Fault, Script
from tests.support.sim.make import inventory_of as inventory
from tests.support.sim.world import World
from vllm_cluster.core.request import FILE
from vllm_cluster.errors import HostError
from vllm_cluster.inventory.model import Inventory

CHANGES = {
    "a host leaves": (inventory(1, 2, 3), inventory(1, 2)),
    "two hosts change places": (inventory(1, 2), inventory(1, 3)),
    "the head moves": (inventory(1, 2), inventory(2, 1)),
    "the head moves and a host leaves": (inventory(1, 2, 3), inventory(2, 1)),
}


def bad(words: Inventory, emit: Any, runtime: Any) -> Any:
    """`vcluster serve` of a model that cannot be loaded."""
    return lab.do_serve(words, emit, runtime, model="no/such")


def settled(world: World, words: Inventory) -> Any:
    """What is served once everything that was under way is over."""
    world.settle(30)
    return lab.succeed(world, words, lab.do_status).value.head.serve


# fault: core/followed.py: return back_to, None → return asked, None
# fault: run/members.py: found[request.TAKEN_FILE] = → found["nothing"] =
@pytest.mark.promise("P33", "P36")
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_served_instead_follows_a_change(change: str) -> None:
    before, after = CHANGES[change]
    world = make.world((2, 2, 2))
    with lab.inside(world):
        for verb in (lab.do_up, lab.do_serve):
            lab.succeed(world, before, verb)
        assert isinstance(lab.run(world, before, bad).error, HostError)
        assert settled(world, before).instead_of.name == "no/such"
        lab.succeed(world, after, lab.do_up)
        served = settled(world, after)
        assert (served.model, served.phase) == ("org/model", "ready")
        # What failed was not tried again.
        lines = world.machines[after.head_name].volumes["vcluster-lab-state"].files["results.jsonl"].splitlines()
        assert [json.loads(line)["result"] for line in lines].count("failed") == 1
        oracle.converged(world, after)
        oracle.untouched(lab.run(world, after, lab.do_up))
    record("P33", f"sim: {change} after a serve that failed", "what is served in its place is served again", True)


# fault: core/followed.py: back_to, moved = _fit(spare, change) if spare else (None, []) → back_to, moved = spare, []
@pytest.mark.promise("P33", "P36")
@pytest.mark.parametrize("change", CHANGES)
def test_a_load_that_fails_after_a_change_goes_back_to_hosts_that_are_there(change: str) -> None:
    before, after = CHANGES[change]
    world = make.world((2, 2, 2))

    def broken_off(call: Any) -> Fault | None:
        """The laptop is closed once the head has the request."""
        asked = json.loads(world.machines["gpu1"].volumes["vcluster-lab-state"].files.get(FILE, b"{}")).get("serve")
        return Fault.KILLED if asked and asked["model"] == "no/such" else None

    with lab.inside(world):
        for verb in (lab.do_up, lab.do_serve):
            lab.succeed(world, before, verb)
        lab.run(world, before, bad, Script(by_words=broken_off))
        world.settle(0.1)
        lab.succeed(world, after, lab.do_up)
        served = settled(world, after)
        assert (served.model, served.phase, served.instead_of.name) == ("org/model", "ready", "no/such")
    record("P33", f"sim: {change} during a load that fails", "what was ready before is served again", True)
