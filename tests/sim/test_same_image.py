"""No node starts while a host would make its own from another image than the others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.figures import record
from tests.support.sim import lab, make
from tests.support.sim.lab import Outcome
from tests.support.sim.world import Picture, World
from vllm_cluster.features.images.push import push_image
from vllm_cluster.kernel.apply.barrier import ensure_same_image
from vllm_cluster.kernel.assess import facts_of
from vllm_cluster.kernel.errors import FleetError, HostError
from vllm_cluster.kernel.events import Emit
from vllm_cluster.kernel.hosts.reach import reached
from vllm_cluster.kernel.hosts.runtime import Runtime
from vllm_cluster.kernel.images.host_images import OneImage
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.plan import Plan, SameImage

INVENTORY = make.inventory(2)


def held(world: World, plan: Plan, inventory: Inventory = INVENTORY) -> Outcome:
    """Hold the plan's barrier on images."""
    (barrier,) = {one for stage in plan.stages for one in stage.barriers if isinstance(one, SameImage)}

    def verb(inventory: Inventory, emit: Emit, runtime: Runtime) -> Any:
        with reached(inventory, emit, runtime=runtime) as (fleet, _):
            facts_of(inventory, fleet)
            wanted = OneImage(barrier.base, fleet.connections[plan.head], emit)
            ensure_same_image(barrier.image, wanted, plan, fleet, known=True)

    return lab.run(world, inventory, verb)


# fault: kernel/apply/barrier.py: if odd: → if odd and not image:
@pytest.mark.parametrize("number", [1, 7, None], ids=["the same", "another", "none"])
def test_a_host_whose_image_changes_behind_the_plan_is_reported(number: int | None) -> None:
    world = make.world((2, 2))
    with lab.inside(world):
        plan: Plan = lab.run(world, INVENTORY, lab.do_plan).value
        other = make.base_image(number or 1)
        images = {other.id: Picture(other.id, [make.IMAGE], dict(other.have))}
        world.machines["gpu2"].images = images if number else {}
        outcome = held(world, plan)
    if number == 1:
        assert outcome.error is None, outcome.story()
        return
    assert isinstance(outcome.error, HostError) and outcome.error.host == "gpu2"
    there = other.id[:19] if number else "gone"
    assert f"{make.IMAGE} is {there} here and {make.base_image().id[:19]} on the other hosts" in str(outcome.error)


# fault: kernel/plan/images.py: return image_id == self.id or image_id in same → return image_id == self.id
@pytest.mark.promise("P26", "P57")
@pytest.mark.parametrize("on", [("gpu1",), ("gpu2",), ("gpu1", "gpu2")])
@pytest.mark.parametrize("way", ["there", "pulled", "sent"])
def test_hosts_that_keep_images_in_other_ways_run_one_image(on: tuple[str, ...], way: str) -> None:
    """Where containerd keeps it, an image has another id: its layers are the same, and nothing is to do again."""
    world = make.world((2, 2), present=False)
    for host in on:
        world.machines[host].containerd = True
    for host in {"there": ("gpu1", "gpu2"), "pulled": (), "sent": ("gpu1",)}[way]:
        world.machines[host].take_image(make.base_image()).tags.append(make.IMAGE)
    world.private = way != "pulled"
    with lab.inside(world):
        done = lab.run(world, INVENTORY, lab.do_up)
        assert done.error is None, done.story()
        assert [event for event in done.events if event.data.get("code") == "image-differs"] == []
        nodes = {machine.name: box for machine, box in world.nodes()}
        ids = {name: box.labels["io.vcluster.base-image"] for name, box in nodes.items()}
        for host, known in ids.items():
            there = world.machines[host].images[known]
            assert there.content == make.base_image().id
            assert (there.id == there.content) == (host not in on)
            assert make.IMAGE in there.tags
        assert lab.run(world, INVENTORY, lab.do_plan).value.empty
        again = lab.run(world, INVENTORY, lab.do_up)
        assert again.error is None, again.story()
        assert next(event.data["operations"] for event in again.events if event.kind == "result") == 0
        # Where another host resolves the name from now on, its id for the image changes no node.
        world.machines["gpu1"].images[ids["gpu1"]].tags.remove(make.IMAGE)
        assert lab.run(world, INVENTORY, lab.do_plan).value.empty
    record("P57", f"sim: an image that is {way}; {' and '.join(on)} with containerd", "up again: 0 operations", True)


# fault: kernel/plan/images.py: image.architecture, image.configuration] → image.architecture]
@pytest.mark.promise("P47")
@pytest.mark.parametrize("containerd", [True, False])
def test_no_node_is_built_upon_the_layers_with_another_config(containerd: bool) -> None:
    """ONBUILD of it would run as root where a node image is built."""
    world, good = make.world((2, 2)), make.base_image()
    there = world.machines["gpu2"]
    there.containerd = containerd
    there.images.clear()
    other = there.take_image(Picture(good.id, [], dict(good.have), config={"OnBuild": ["RUN id"]}))
    other.tags.append(make.IMAGE)
    with lab.inside(world):
        done = lab.run(world, INVENTORY, lab.do_up)
    assert done.error is None, done.story()
    (base,) = [box.labels["io.vcluster.base-image"] for machine, box in world.nodes() if machine is there]
    assert base != other.id
    assert there.images[base].content == good.id


@pytest.mark.promise("P57")
@pytest.mark.parametrize(("source", "receiver"), [("gpu1", "gpu2"), ("gpu2", "gpu1")])
def test_an_image_goes_between_two_stores_both_ways(source: str, receiver: str) -> None:
    world, name = make.world((2, 2)), "lab/other:1"
    world.machines["gpu2"].containerd = True
    world.machines[source].take_image(make.base_image(7)).tags.append(name)
    with lab.inside(world):
        for sent in (True, False):
            before = len(world.machines[receiver].images)
            lab.succeed(world, INVENTORY, lab.verb(push_image, image=name, source=source))
            there = world.machines[receiver].picture(name)
            assert there and there.content == make.base_image(7).id
            assert len(world.machines[receiver].images) == before + sent
        assert world.machines[source].picture(name) is not there
    record("P57", f"sim: image push from {source}, of which gpu2 has containerd", "whole; again: nothing is sent", True)


def test_every_host_with_another_image_is_named_at_once() -> None:
    world, inventory = make.world((2, 2, 2)), make.inventory(3)
    with lab.inside(world):
        plan: Plan = lab.run(world, inventory, lab.do_plan).value
        for host in ("gpu2", "gpu3"):
            world.machines[host].images = {}
        error = held(world, plan, inventory).error
    assert isinstance(error, FleetError)
    assert list(error.failures) == ["gpu2", "gpu3"]
