"""`check` needs no lease: those who have it leave alone what it runs on the hosts, and remove what has ended."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.sim import lab, make
from tests.support.sim.faults import Call, Fault, Script
from tests.support.sim.world import Box, World
from vllm_cluster.kernel.events import Emit
from vllm_cluster.kernel.facts.docker_objects import Container
from vllm_cluster.kernel.hosts.observe import observe
from vllm_cluster.kernel.hosts.reach import reached
from vllm_cluster.kernel.hosts.runtime import Runtime
from vllm_cluster.kernel.images.inspect import look_inside
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.identity import is_temporary

INVENTORY = make.inventory(2)


def temporary(world: World) -> dict[str, Box]:
    """The temporary containers of all hosts."""
    boxes = [(machine.name, box) for machine in world.machines.values() for box in machine.boxes.values()]
    rows = [(host, box, Container(box.id, box.name, box.state, box.image, box.labels)) for host, box in boxes]
    return {f"{host} {box.name}": box for host, box, row in rows if is_temporary(INVENTORY.cluster, row)}


def look(inventory: Inventory, emit: Emit, runtime: Runtime) -> Any:
    """What `vcluster check` does in containers of its own."""
    with reached(inventory, emit, runtime=runtime) as (fleet, _):
        fleet.without_lease()
        facts = fleet.all(lambda connection: observe(inventory, connection))
        return look_inside(fleet, inventory, facts, emit)


# fault: kernel/plan/identity.py: container.state != "running" → True
@pytest.mark.parametrize("verb", [lab.do_up, lab.do_down])
def test_a_colleague_leaves_what_check_runs_alone(verb: lab.Verb) -> None:
    world, others, script = make.world((2, 2)), [verb], Script()

    def decide(call: Call) -> Fault | None:
        if call.what == "output of inspect_image" and others:
            ran = temporary(world)
            lab.succeed(world, INVENTORY, others.pop())
            assert ran and temporary(world) == ran
        return None

    script.by_words = decide
    with lab.inside(world):
        assert lab.run(world, INVENTORY, lab.do_up).error is None
        outcome = lab.run(world, INVENTORY, look, script)
        assert (outcome.error, others) == (None, []), outcome.story()
        assert temporary(world) == {}


@pytest.mark.parametrize("verb", [lab.do_up, lab.do_down])
def test_what_a_killed_check_made_and_did_not_start_is_removed(verb: lab.Verb) -> None:
    world = make.world((2, 2))
    with lab.inside(world):
        assert lab.run(world, INVENTORY, lab.do_up).error is None
        script = Script(by_words=lambda call: Fault.KILLED if call.what.startswith("docker start") else None)
        lab.run(world, INVENTORY, look, script)
        assert temporary(world)
        world.settle()
        assert lab.run(world, INVENTORY, verb).error is None
        assert temporary(world) == {}


def test_what_a_killed_check_runs_ends_with_it() -> None:
    world = make.world((2, 2))
    with lab.inside(world):
        assert lab.run(world, INVENTORY, lab.do_up).error is None
        script = Script(by_words=lambda call: Fault.KILLED if call.what == "output of inspect_image" else None)
        lab.run(world, INVENTORY, look, script)
        assert temporary(world)
        world.settle()
        assert temporary(world) == {}


# fault: kernel/docker/temporary.py: self._there.add(name) →
@pytest.mark.parametrize("begun", ["output of inspect_image", "docker start"])
def test_ctrl_c_leaves_no_container_that_was_made(begun: str) -> None:
    """Nothing else ends one that is created and not started."""
    world = make.world((2, 2))
    with lab.inside(world):
        assert lab.run(world, INVENTORY, lab.do_up).error is None
        script = Script(by_words=lambda call: Fault.INTERRUPT if call.what.startswith(begun) else None)
        assert isinstance(lab.run(world, INVENTORY, look, script).error, KeyboardInterrupt)
        assert temporary(world) == {}


# fault: serving/look_up.py: left or isinstance → isinstance
@pytest.mark.parametrize("verb", [lab.do_serve, lab.do_stop])
def test_what_a_killed_check_left_keeps_no_verb_from_the_model(verb: lab.Verb) -> None:
    """The cluster was called "not up", while it served."""
    world = make.world((2, 2))
    with lab.inside(world):
        assert lab.run(world, INVENTORY, lab.do_up).error is None
        script = Script(by_words=lambda call: Fault.KILLED if call.what.startswith("docker start") else None)
        lab.run(world, INVENTORY, look, script)
        world.settle()
        assert temporary(world)
        lab.succeed(world, INVENTORY, verb)
