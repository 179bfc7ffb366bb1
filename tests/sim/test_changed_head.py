"""`head:` or an address was changed in the inventory, or the head's node was removed, and no `up` has run since."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest

from tests.support.sim import lab, make
from tests.support.sim.lab import Outcome, code
from tests.support.sim.world import World
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.handle import open_node
from vllm_cluster.kernel.plan.spec import HEAD_ADDRESS, ID
from vllm_cluster.serving.endpoint import endpoint
from vllm_cluster.serving.head import at_head
from vllm_cluster.serving.status import history
from vllm_cluster.serving.status.render import group_problems, serving_lines
from vllm_cluster.serving.status.status import ClusterStatus

WAS, CHANGED = make.inventory(2), make.inventory(2, head="gpu2")


def _node(inventory: Inventory, _: object, runtime: object) -> object:
    with at_head(inventory, runtime) as head:  # type: ignore[arg-type]
        return open_node(inventory, head)


ASKS: dict[str, lab.Verb] = {
    "endpoint --key": lambda inventory, _, runtime: endpoint.key(inventory, lab.cache(), runtime=runtime),
    "status --history": lambda inventory, _, runtime: history.history(inventory, runtime=runtime),
    "exec --head": _node,
    "stop": lab.do_stop,
}


@pytest.fixture
def world() -> Iterator[World]:
    """Two hosts that serve a model; the head is gpu1."""
    with lab.cluster(2, lab.do_up, lab.do_serve) as made:
        yield made


def look(world: World, inventory: Inventory) -> tuple[ClusterStatus, str]:
    """`vcluster status`: the document, and what a person reads of what is served and of problems."""
    found = lab.succeed(world, inventory, lab.do_status).value
    assert isinstance(found, ClusterStatus)
    problems = (f"{text}\n  {fix}" for text, fix in group_problems(found, 0))
    return found, "\n".join((found.summary, *serving_lines(found), *problems))


def refusal(outcome: Outcome) -> str:
    """What a person reads of an error."""
    assert code(outcome) == 3, outcome.story()
    assert not outcome.script.changing
    return f"{outcome.error}\n{getattr(outcome.error, 'hint', '')}"


def identity(world: World) -> str:
    """The id of the cluster."""
    box = world.machines["gpu1"].box("vcluster-lab")
    assert box
    return box.labels[ID]


# fault: kernel/checks/own.py: return [worker] if worker else list( → return list(
# fault: kernel/checks/own.py: of in (facts.was_head_of, *led) → of == facts.was_head_of
@pytest.mark.parametrize("with_id", [False, True], ids=["made from here", "id"])
@pytest.mark.parametrize("verb", ASKS.values(), ids=ASKS)
def test_all_that_ask_the_head_alone_name_the_one_whose_worker_it_is(
    world: World, verb: lab.Verb, with_id: bool
) -> None:
    """Each called the cluster another one, with remedies that would have ended it; by its id, what is old was shown."""
    if with_id:
        world.heads.clear()
    inventory = make.inventory(2, head="gpu2", id=identity(world) if with_id else None)
    text = refusal(lab.run(world, inventory, verb))
    assert "gpu2: the node there is a worker of the head at 10.0.0.1 (gpu1)" in text
    assert "set head: gpu1 in the inventory; or, to make gpu2 the head:\nvcluster plan\nvcluster up" in text
    assert "belongs to another cluster" not in text


# fault: kernel/checks/own.py: of in (facts.was_head_of, *led) → True
# fault: kernel/checks/own.py: return not inventory.id and → return
@pytest.mark.parametrize("knows", ["nothing", "another id", "another cluster there"])
@pytest.mark.parametrize("verb", ASKS.values(), ids=ASKS)
def test_a_worker_of_a_cluster_that_is_not_known_here_leads_to_no_head(
    world: World, verb: lab.Verb, knows: str
) -> None:
    """Another team has the name and the hosts too: by `set head:` its key was shown, and its model stopped."""
    of = identity(world)
    if knows == "nothing":
        world.heads.clear()
    if knows == "another cluster there":
        world.heads["lab"] = {way: replace(led, id="0123456789abcdef") for way, led in world.heads["lab"].items()}
    inventory = make.inventory(2, head="gpu2", id="0123456789abcdef" if knows == "another id" else None)
    text = refusal(lab.run(world, inventory, verb))
    assert f"gpu2: vcluster-lab belongs to another cluster, lab (id {of}, head 10.0.0.1)" in text
    assert f"or, if that cluster is yours, set id: {of}" in text
    assert "set head:" not in text


# fault: kernel/checks/own.py: if not (authority( → if not (True or authority(
@pytest.mark.parametrize("verb", ASKS.values(), ids=ASKS)
def test_a_worker_of_a_head_that_is_not_in_the_inventory_is_of_another_cluster(world: World, verb: lab.Verb) -> None:
    box = world.machines["gpu2"].box("vcluster-lab")
    assert box
    box.labels[HEAD_ADDRESS] = "10.0.9.9"
    text = refusal(lab.run(world, CHANGED, verb))
    assert "gpu2: vcluster-lab belongs to another cluster, lab" in text
    assert "set head: gpu" not in text


# fault: serving/status/status.py: rows[name] = replace(found, status=None, → rows[name] = replace(found,
@pytest.mark.parametrize("away", [(), ("gpu1",)], ids=["all answer", "the head of before is away"])
def test_status_takes_no_worker_for_the_head(world: World, away: tuple[str, ...]) -> None:
    """It called the cluster empty while the head of before served the model."""
    for name in away:
        world.machines[name].reachable = False
    found, text = look(world, CHANGED)
    assert (found.up, found.served, found.head) == (False, None, None)
    assert found.hosts[0].joined_gpus is None
    assert "served model: unknown: gpu2 is a worker, and not the head\n" in text
    assert "gpu2: the node there is a worker of the head at 10.0.0.1 (gpu1)\n" in text
    assert "vcluster plan\nvcluster up" in text
    assert not any(words in text for words in ("No model", "Ray reports", "has not joined", "another cluster"))


# fault: serving/status/status.py: return replace(rows[name], state=UNKNOWN), → return rows[name],
def test_a_stopped_worker_is_not_taken_for_the_head(world: World) -> None:
    box = world.machines["gpu2"].box("vcluster-lab")
    assert box
    world.stop(world.machines["gpu2"], box, gently=False, code=1)
    found, text = look(world, CHANGED)
    assert (found.served, found.hosts[0].joined_gpus) == (None, None)
    assert "a worker of the head at 10.0.0.1 (gpu1)" in text


def _remove(world: World) -> None:
    machine = world.machines["gpu1"]
    box = machine.box("vcluster-lab")
    assert box
    world.stop(machine, box, gently=False, code=137)
    machine.boxes.clear()


def _remove_all(world: World) -> None:
    _remove(world)
    world.machines["gpu1"].volumes.clear()


def _stop(world: World) -> None:
    box = world.machines["gpu1"].box("vcluster-lab")
    assert box
    world.stop(world.machines["gpu1"], box, gently=False, code=1)


KEPT = "what was asked for is kept in its volume, and up starts it again"


# fault: serving/status/status.py: return False if self.head_state in (MISSING, STOPPED) and not self.unknown else → return False if self.head_state in (MISSING, STOPPED) else
@pytest.mark.parametrize(
    ("ends", "why"),
    [
        (_remove, f"the head's node is gone; {KEPT}"),
        (_remove_all, "the head's node is missing, and other hosts have nodes"),
        (_stop, f"the head's node does not run; {KEPT}"),
    ],
    ids=["removed", "removed with its volumes", "stopped"],
)
def test_what_is_served_is_unknown_without_the_heads_node(
    world: World, ends: Callable[[World], None], why: str
) -> None:
    ends(world)
    found, text = look(world, WAS)
    assert (found.served, found.head) == (None, None)
    assert f"served model: unknown: {why}\n" in text
    assert "No model" not in text


@pytest.mark.parametrize("verbs", [(), (lab.do_up, lab.do_serve, lab.do_down)], ids=["never up", "after down"])
def test_where_nothing_of_the_cluster_is_left_no_model_is_served(verbs: tuple[lab.Verb, ...]) -> None:
    with lab.cluster(2, *verbs) as world:
        found, text = look(world, WAS)
    assert found.served is False
    assert "No model is being served." in text


# fault: serving/consent.py: unknown=found.unknown or left_by_head(plan.cluster, facts[plan.head]) → unknown=found.unknown
def test_up_does_not_ask_as_if_no_model_were_served(world: World) -> None:
    _remove(world)
    person = lab.Person(False)
    lab.run(world, WAS, partial(lab.do_up, confirm=person))
    (asked,) = person.asked
    assert f"the model of lab (unknown: the head's node is gone; {KEPT})" in asked
    assert "no model is served" not in asked
    lab.succeed(world, WAS, lab.do_up)
    found, _ = look(world, WAS)
    assert found.served


# fault: serving/serve/stop.py: if not own and (left := left_by_head( → if False and (left := left_by_head(
def test_stop_does_not_report_as_stopped_what_up_would_start_again(world: World) -> None:
    _remove(world)
    assert f"gpu1: the head's node is gone; {KEPT}" in refusal(lab.run(world, WAS, lab.do_stop))


# fault: kernel/plan/diff.py: "its head is recreated" → "the head was recreated"
def test_what_is_still_to_come_is_not_called_done(world: World) -> None:
    _remove(world)
    text = refusal(lab.run(world, WAS, lab.do_serve))
    assert "gpu1: the node is missing" in text
    assert "gpu2: the node must be restarted (its head is recreated)" in text


# fault: serving/status/status.py: if spec and spec.address != address: → if False:
def test_a_node_at_another_address_than_the_inventorys_is_named(world: World) -> None:
    """It was a host without a name, and the remedy the `up` that refuses it."""
    _, text = look(world, make.inventory(2, {"gpu2": {"address": "10.0.0.9"}}))
    assert "gpu2: its node is at 10.0.0.2, and the inventory has 10.0.0.9" in text
    assert "\n  vcluster up" not in text
