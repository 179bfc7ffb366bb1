"""A cluster that serves, whose head keeps files of an older format: they are read, and nothing is stopped unasked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.support import landed
from tests.support.figures import record
from tests.support.sim import lab, oracle
from tests.support.sim.world import World
from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.wire.order import FORMAT_OF_PARTS, Placement, read_order, read_ready, read_taken

pytestmark = pytest.mark.promise("P43")
FORMATS = range(1, FORMAT_OF_PARTS + 1)
Upgraded = tuple[int, World, Inventory]


@pytest.fixture(params=FORMATS, ids=lambda number: f"format {number}")
def upgraded(request: pytest.FixtureRequest) -> Iterator[Upgraded]:
    """Its format, its hosts and its inventory; nothing but this version's verbs runs from here on."""
    world, inventory = landed.of_format(request.param)
    with lab.inside(world):
        yield request.param, world, inventory


def files(world: World) -> dict[str, bytes]:
    """What the head keeps."""
    return world.machines["gpu1"].volumes["vcluster-lab-state"].files


def wanted(world: World) -> Placement:
    """What the head is asked to serve."""
    found = read_order(files(world)["wanted.json"]).wanted
    assert found
    return found


def nodes(world: World) -> list[tuple[str, int]]:
    """Each node's container, and which of its starts it is."""
    return [(box.id, box.born) for _, box in world.nodes()]


def served(world: World, inventory: Inventory) -> Any:
    """What `status` shows of the model."""
    found = lab.succeed(world, inventory, lab.do_status).value
    assert found.up and found.ready
    return found.head.serve


def test_each_file_of_the_head_is_of_that_format(upgraded: Upgraded) -> None:
    number, world, _ = upgraded
    kept = files(world)
    assert {json.loads(kept[name])["v"] for name in ("wanted.json", "ready.json")} == {number}
    # Of what the head took, the first format had no number.
    assert json.loads(kept["request.json"]).get("v", 1) == number
    asked = wanted(world)
    assert (asked.deployment.model, asked.replica.tp, asked.replica.pp) == ("org/model", 2, 2)
    assert read_taken(kept["request.json"]).served == asked
    assert read_ready(kept["ready.json"]).requests == (asked,)


# fault: wire/order.py: known = (first, FORMAT, → known = (FORMAT,
def test_status_and_plan_read_it_and_change_nothing(upgraded: Upgraded) -> None:
    _, world, inventory = upgraded
    before, kept = nodes(world), files(world)["wanted.json"]
    serve = served(world, inventory)
    assert (serve.phase, serve.name, serve.generation) == ("ready", "org/model", wanted(world).generation)
    planned = lab.succeed(world, inventory, lab.do_plan)
    assert planned.script.changing == []
    assert (nodes(world), files(world)["wanted.json"]) == (before, kept)


def test_up_asks_before_it_stops_what_serves(upgraded: Upgraded) -> None:
    number, world, inventory = upgraded
    before, name = nodes(world), wanted(world).generation
    plan = lab.succeed(world, inventory, lab.do_plan).value
    refused = lab.run(world, inventory, partial(lab.do_up, confirm=lambda _: False))
    if [*plan.operations()]:
        assert isinstance(refused.error, VclusterError)
    else:
        assert refused.error is None, refused.story()
    assert refused.script.changing == []
    assert (nodes(world), served(world, inventory).generation) == (before, name)
    record("P43", f"sim: serving by files of format {number}, up without consent", "the model continues", True)


def test_after_up_it_serves_the_same_and_a_second_up_has_nothing_to_do(upgraded: Upgraded) -> None:
    number, world, inventory = upgraded
    before = wanted(world)
    lab.succeed(world, inventory, lab.do_up)
    world.settle()
    oracle.converged(world, inventory)
    assert wanted(world).deployment == before.deployment
    assert served(world, inventory).generation == before.generation
    oracle.untouched(lab.run(world, inventory, lab.do_up))
    record("P43", f"sim: serving by files of format {number}, up", "serves the same; a second up changes nothing", True)


@pytest.mark.parametrize("renewed", [False, True], ids=["as it is", "after up"])
def test_it_is_stopped_and_taken_down(renewed: bool, upgraded: Upgraded) -> None:
    _, world, inventory = upgraded
    foreign = world.foreign()
    if renewed:
        lab.succeed(world, inventory, lab.do_up)
    assert lab.succeed(world, inventory, lab.do_stop).value is True
    assert read_order(files(world)["wanted.json"]).wanted is None
    assert {box.life["state"] for _, box in world.nodes()} == {"up"}
    lab.succeed(world, inventory, lab.do_down)
    oracle.nothing_left(world)
    assert world.foreign() == foreign
