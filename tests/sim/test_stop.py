"""`vcluster stop` needs the head and the lease alone: what it must end often fails because something else is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.support.sim import lab, life, make, oracle
from tests.support.sim.lab import Outcome
from tests.support.sim.world import Box, World
from vllm_cluster.kernel.errors import PreflightFailed
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.handle import NodeHandle, NodeState
from vllm_cluster.wire.order import read_order
from vllm_cluster.wire.status import ServeStatus

Case = Callable[[World, Inventory], Inventory]


@pytest.fixture
def serving() -> Iterator[tuple[World, Inventory]]:
    """Two hosts that serve a model."""
    with lab.cluster(2, lab.do_up, lab.do_serve) as world:
        yield world, make.inventory(2)


def head_of(world: World) -> Box:
    """The head's container."""
    box = world.machines["gpu1"].box("vcluster-lab")
    assert box
    return box


def request(world: World) -> object:
    """What the head is asked to serve."""
    raw = world.machines["gpu1"].read(head_of(world), f"{life.STATE}/wanted.json")
    return read_order(raw).wanted if raw else None


def result(outcome: Outcome) -> str:
    """The text of the result event."""
    (event,) = [event for event in outcome.events if event.kind == "result"]
    assert event.data == {"stopped": outcome.value}
    return event.text


# fault: serving/serve/stop.py: {'; '.join(dict.fromkeys(left))}" → "
def test_what_does_not_end_is_named_with_its_host(
    serving: tuple[World, Inventory], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, inventory = serving
    read, served = NodeHandle.state, list[ServeStatus]()

    def ends(node: NodeHandle) -> NodeState:
        state = read(node)
        served.extend(state.replicas)
        left = replace(served[0], phase="stopping", detail="no longer wanted; its part has not ended on gpu2")
        return replace(state, status=replace(state.status, serve=left)) if state.status else state

    with lab.inside(world):
        monkeypatch.setattr(NodeHandle, "state", ends)
        error = lab.run(world, inventory, lab.do_stop).error
    assert "vLLM did not exit within 90 s: stopping: no longer wanted; its part has not ended on gpu2" in str(error)


def unreachable_worker(world: World, inventory: Inventory) -> Inventory:
    world.machines["gpu2"].reachable = False
    return inventory


def worker_without_docker(world: World, inventory: Inventory) -> Inventory:
    world.machines["gpu2"].docker = "stopped"
    return inventory


def fewer_gpus_than_promised(world: World, inventory: Inventory) -> Inventory:
    world.machines["gpu2"].gpus = 1
    return make.inventory(2, {"gpu2": {"gpus": 2}})


def no_hf_token(_world: World, _inventory: Inventory) -> Inventory:
    return make.inventory(2, hf_token="env:NOT_SET_ANYWHERE")


# fault: serving/serve/stop.py: connect_all(inventory, emit, [inventory.head_name], → connect_all(inventory, emit,
@pytest.mark.promise("P37")
@pytest.mark.parametrize(
    "case", [unreachable_worker, worker_without_docker, fewer_gpus_than_promised, no_hf_token], ids=lambda c: c.__name__
)
def test_the_head_is_enough(serving: tuple[World, Inventory], case: Case) -> None:
    world, inventory = serving
    inventory = case(world, inventory)
    outcome = lab.succeed(world, inventory, lab.do_stop)
    assert outcome.script_hosts() == {"gpu1"}
    assert result(outcome) == "Stopped org/model. Cluster lab is still up (4/4 GPUs)."
    assert request(world) is None
    again = lab.run(world, inventory, lab.do_stop)
    assert (result(again), again.script.changing) == ("No model is being served.", [])


# fault: serving/serve/stop.py: if have == want: → if want:
def test_a_half_up_cluster_is_not_called_up(serving: tuple[World, Inventory]) -> None:
    world, inventory = serving
    worker = world.machines["gpu2"]
    world.stop(worker, worker.boxes[next(iter(worker.boxes))], gently=False, code=137)
    world.settle(5)
    outcome = lab.run(world, inventory, lab.do_stop)
    assert result(outcome) == "Stopped org/model. Cluster lab is incomplete (2/4 GPUs): vcluster status"


@pytest.mark.parametrize("how", ["never up", "down"])
def test_a_cluster_that_is_down_serves_nothing(how: str) -> None:
    world, inventory = make.world((2, 2)), make.inventory(2)
    with lab.inside(world):
        for verb in (lab.do_up, lab.do_serve, lab.do_down) if how == "down" else ():
            assert lab.run(world, inventory, verb).error is None
        outcome = lab.run(world, inventory, lab.do_stop)
    assert outcome.error is None, outcome.story()
    assert (outcome.value, result(outcome), outcome.script.changing) == (False, "No model is being served.", [])


@pytest.mark.parametrize("state", ["exited", "restarting"])
def test_a_head_that_does_not_run_serves_nothing_when_it_runs_again(
    serving: tuple[World, Inventory], state: str
) -> None:
    world, inventory = serving
    world.stop(world.machines["gpu1"], head_of(world), gently=False, code=1)
    head_of(world).state = state
    outcome = lab.succeed(world, inventory, lab.do_stop)
    assert (outcome.value, result(outcome)) == (True, "Withdrew the request to serve.")
    warned = [event.text for event in outcome.events if event.kind == "warning"]
    assert [text.partition(":")[0] for text in warned] == ["the history of lab has no line for this stop"]
    assert request(world) is None
    head_of(world).state = "exited"
    assert lab.run(world, inventory, lab.do_up).error is None
    oracle.converged(world, inventory)
    assert lab.run(world, inventory, lab.do_status).value.head.serve is None


def test_an_unreadable_request_is_withdrawn(serving: tuple[World, Inventory]) -> None:
    """What a power cut leaves of a file that was not synced."""
    world, inventory = serving
    world.stop(world.machines["gpu1"], head_of(world), gently=False, code=1)
    files, inside, _ = world.machines["gpu1"].place(head_of(world), f"{life.STATE}/wanted.json")
    files[inside] = b"\0" * 512
    assert lab.run(world, inventory, lab.do_stop).value is True
    assert request(world) is None


def test_a_worker_is_not_taken_for_the_head(serving: tuple[World, Inventory]) -> None:
    world, _ = serving
    outcome = lab.run(world, make.inventory(2, head="gpu2"), lab.do_stop)
    assert isinstance(outcome.error, PreflightFailed), outcome.story()
    assert "gpu2: the node there is a worker of the head at 10.0.0.1" in str(outcome.error)
    assert not outcome.script.changing
    assert request(world) is not None
