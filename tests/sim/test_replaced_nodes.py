"""A node that takes another's place: `up` waits for it, while Ray still counts the one that has ended."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.sim import lab, life, make, oracle
from vllm_cluster.actions.assess import assess, connect_all
from vllm_cluster.errors import NodesNotJoined
from vllm_cluster.events import Emit
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.barrier import await_gpus
from vllm_cluster.run.runtime import Runtime
from vllm_cluster.run.secrets import Reading

INVENTORY = make.inventory(2)
# What Ray takes to notice, at most.
NOTICED = 33.0


# fault: run/barrier.py: if name in nodes and not _may_be_up(nodes[name])} → if name not in nodes}
@pytest.mark.promise("P1")
@pytest.mark.parametrize("what", ["made again", "started", "still starting"])
def test_up_waits_for_the_node_itself(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "GHOST", NOTICED)
    world = make.world((2, 2))
    with lab.inside(world):
        lab.succeed(world, INVENTORY, lab.do_up)
        machine = world.machines["gpu2"]
        node = machine.box("vcluster-lab")
        assert node
        if what == "made again":
            machine.boxes.clear()
        elif what == "started":
            world.stop(machine, node, gently=False, code=137)
        else:  # where the run before was broken off, this one has nothing to do but to wait
            node.life.update(state="starting", due=world.clock.now + 20)
            world.clock.sleep(1)  # it reports that
        lab.succeed(world, INVENTORY, lab.do_up)
        world.clock.sleep(1)
        status: Any = lab.run(world, INVENTORY, lab.do_status).value
        assert status.up, status.hosts
        oracle.converged(world, INVENTORY)


# fault: run/barrier.py: if node.alive and node.id in former} → if node.alive and node.id in ()}
def test_a_former_node_is_not_counted_by_a_picture_from_before() -> None:
    """The head lists its members every so often: its last list may have the node that has ended alone."""
    world = make.world((2, 2))
    with lab.inside(world):
        lab.succeed(world, INVENTORY, lab.do_up)
        head = world.machines["gpu1"].box("vcluster-lab")
        assert head
        (former,) = (name for name, row in head.life["nodes"].items() if row["address"] == "10.0.0.2")

        def wait(inventory: Inventory, emit: Emit, runtime: Runtime) -> None:
            with connect_all(inventory, emit, runtime=runtime) as fleet:
                plan = assess(inventory, fleet, emit, reading=Reading.NONE).plan
                await_gpus(fleet, plan, emit, {former})

        waited = lab.run(world, INVENTORY, wait)
    assert isinstance(waited.error, NodesNotJoined), waited.story()
    assert "GPUs 2/4: waiting for gpu2" in waited.error.message
