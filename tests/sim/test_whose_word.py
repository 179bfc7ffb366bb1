"""Which image every host runs: by the reference, the registry or the head, and never by the word of a worker."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.support.sim import lab, make, oracle
from tests.support.sim.lab import Outcome
from tests.support.sim.world import Picture, World
from vllm_cluster.features.images.push import push_image
from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.kernel.images import pull as image_pull
from vllm_cluster.kernel.images import supply
from vllm_cluster.kernel.inventory.model import Inventory

pytestmark = pytest.mark.promise("P26", "P47")

REPOSITORY = "vllm/vllm-openai"
PIN, OLD = (f"{REPOSITORY}@sha256:{digit * 64}" for digit in "96")
GOOD, OTHER = make.base_image(1), make.base_image(66)


def world_of(image: str, *claimed: str, registry: bool = True) -> tuple[World, Inventory]:
    """Three hosts, of which the last claims that its own image has these names; a registry has the right one."""
    world = make.world((2, 2, 2), present=False)
    world.registry.clear()
    world.registry.update({image: GOOD, OLD: OTHER} if registry else {})
    hold(world, "gpu3", OTHER, *claimed)
    return world, make.inventory(3, image=image)


def hold(world: World, host: str, image: Picture, *names: str, as_id: str = "") -> None:
    """A host has an image under these names, or claims to have it under another id."""
    known = as_id or image.id
    world.machines[host].images[known] = Picture(known, list(names), dict(image.have), {}, image.id)


def ups(world: World, inventory: Inventory) -> tuple[dict[str | None, str], Outcome]:
    """`plan` and `up`: what each host is to do for its image, and how it ended."""
    with lab.inside(world):
        planned = lab.texts(lab.succeed(world, inventory, lab.do_plan).value)
        images = {host: text.partition(",")[0] for host, text in planned if "unless it has one" in text}
        return images, lab.run(world, inventory, lab.do_up)


def bases(world: World) -> dict[str, str]:
    """The image that each node was made from."""
    return {machine.name: box.labels["io.vcluster.base-image"] for machine, box in world.nodes()}


# fault: kernel/plan/images.py: head, *others = hosts → *others, head = hosts
@pytest.mark.parametrize(
    ("image", "claimed"), [(PIN, [PIN]), (PIN, [OLD, PIN]), (make.IMAGE, [make.IMAGE]), (make.IMAGE, [OLD, make.IMAGE])]
)
def test_what_a_worker_claims_to_have_decides_for_no_other_host(image: str, claimed: list[str]) -> None:
    world, inventory = world_of(image, *claimed)
    planned, done = ups(world, inventory)
    assert done.error is None, done.story()
    assert bases(world) == dict.fromkeys(("gpu1", "gpu2", "gpu3"), GOOD.id)
    offer = "" if image == PIN else f" (or send {OTHER.id[:19]} from gpu3)"
    assert planned["gpu1"].startswith(f"pull {image}{offer}")
    assert OTHER.id not in {*world.machines["gpu1"].images, *world.machines["gpu2"].images}
    oracle.converged(world, inventory)


# fault: kernel/plan/images.py: source = "" if is_pinned(reference) else host → source = host
def test_a_pinned_image_is_sent_by_no_host() -> None:
    world, inventory = world_of(PIN, PIN, registry=False)
    _, done = ups(world, inventory)
    assert f"cannot pull {PIN}" in str(done.error)
    hint = "A registry alone proves a digest. Where none is in reach, name the image by a tag"
    assert isinstance(done.error, VclusterError) and hint in str(done.error.hint)
    assert not world.machines["gpu1"].images
    assert not bases(world)


# fault: kernel/images/supply.py: way = f"take that of {head}: → _ = f"take that of {head}:
def test_a_pinned_image_of_the_head_is_pushed_where_a_person_asks_for_it() -> None:
    """Hosts without a registry: what `up` does not take by a host's word, a person does."""
    world, inventory = world_of(PIN, registry=False)
    world.machines["gpu3"].images.clear()
    hold(world, "gpu1", GOOD, PIN)
    planned, done = ups(world, inventory)
    assert planned["gpu2"].startswith(f"pull {PIN}")
    assert isinstance(done.error, VclusterError)
    assert "take that of gpu1: vcluster image push --from gpu1" in str(done.error.hint)
    with lab.inside(world):
        pushed = lab.succeed(world, inventory, lab.verb(push_image, source="gpu1"))
        assert f"{PIN}, as gpu1 names it, is {GOOD.id[:19]} on 3 hosts" in pushed.events[-1].text
        lab.succeed(world, inventory, lab.do_up)
    assert bases(world) == dict.fromkeys(("gpu1", "gpu2", "gpu3"), GOOD.id)


# fault: kernel/plan/diff.py: if lacks else {} → if not lacks else {}
def test_without_a_registry_a_worker_sends_the_image_that_the_plan_showed() -> None:
    world, inventory = world_of(make.IMAGE, make.IMAGE, registry=False)
    planned, done = ups(world, inventory)
    assert done.error is None, done.story()
    assert bases(world) == dict.fromkeys(("gpu1", "gpu2", "gpu3"), OTHER.id)
    shown = f"pull {make.IMAGE} (or send {OTHER.id[:19]} from gpu3)"
    assert [planned[host].partition(", then")[0] for host in ("gpu1", "gpu2")] == [shown, shown]
    notes = [event.text for event in done.events if event.kind == "note"]
    assert any(f"gpu1 cannot pull {make.IMAGE}: it is sent from gpu3" in note for note in notes)
    oracle.converged(world, inventory)


STORES = [("gpu3",), ("gpu1", "gpu2"), ("gpu1", "gpu2", "gpu3")]


# fault: kernel/plan/images.py: if self.classic and named.classic: → if named.id:
# fault: kernel/images/host_images.py: and ids.get(inventory.head_name) → and not ids.get("")
@pytest.mark.promise("P57")
@pytest.mark.parametrize("containerd", STORES)
def test_without_a_registry_a_worker_sends_its_image_to_hosts_that_keep_it_in_another_way(
    containerd: tuple[str, ...],
) -> None:
    """Its id is another there; its content is the one that the plan found beside the id that it shows."""
    world, inventory = world_of(make.IMAGE, registry=False)
    for host in containerd:
        world.machines[host].containerd = True
    source = world.machines["gpu3"]
    source.images.clear()
    known = source.take_image(GOOD)
    known.tags.append(make.IMAGE)
    planned, done = ups(world, inventory)
    assert planned["gpu1"].startswith(f"pull {make.IMAGE} (or send {known.id[:19]} from gpu3)")
    assert done.error is None, done.story()
    made_from = bases(world)
    for host, base in made_from.items():
        assert world.machines[host].images[base].content == GOOD.id
    assert list(made_from) == ["gpu1", "gpu2", "gpu3"]
    notes = {event.host: event.text for event in done.events if event.text.startswith("what gpu3 names")}
    names = {host: f"what gpu3 names {known.id[:19]} is {made_from[host][:19]} here" for host in ("gpu1", "gpu2")}
    assert notes == names
    with lab.inside(world):
        assert lab.succeed(world, inventory, lab.do_plan).value.empty


# fault: kernel/images/supply.py: if operation.offered and image.fingerprint != operation.content: → if not image.id:
def test_a_worker_whose_image_changes_under_the_id_that_the_plan_showed_sends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What an id of containerd means is known by its own host alone: what it held as the plan was made counts."""
    world, inventory = world_of(make.IMAGE, registry=False)
    source = world.machines["gpu3"]
    source.containerd = True
    source.images.clear()
    known = source.take_image(GOOD)
    known.tags.append(make.IMAGE)

    def pull(*arguments: Any) -> None:
        known.content = OTHER.id
        good(*arguments)

    good = image_pull.pull
    monkeypatch.setattr(supply, "pull", pull)
    _, done = ups(world, inventory)
    assert f"gpu3: prepare image: {known.id[:19]} is another image now than the plan showed" in str(done.error)
    assert not world.machines["gpu1"].images
    assert not bases(world)


# fault: kernel/images/supply.py: if having else "vcluster up --pull-image" → if not having else "vcluster up"
@pytest.mark.promise("P16")
@pytest.mark.parametrize("node_image", [True, False])
@pytest.mark.parametrize("others", [True, False])
def test_an_image_that_is_gone_from_the_head_comes_back_by_the_remedy(node_image: bool, others: bool) -> None:
    """Nodes run from it, and one is to be made again, while the tag means another image by now."""
    world, inventory = make.world((2, 2, 2)), make.inventory(3)
    with lab.inside(world):
        lab.succeed(world, inventory, lab.do_up)
        for host in ("gpu1",) if others else ("gpu1", "gpu2"):
            there = world.machines[host].images
            for gone in [one for one in there.values() if make.IMAGE in one.tags or not node_image]:
                del there[gone.id]
        world.registry[make.IMAGE] = make.base_image(2)
        lost = world.machines["gpu3"]
        for objects in (lost.images, lost.boxes, lost.volumes):
            objects.clear()
        refused = lab.run(world, inventory, lab.do_up).error
        assert isinstance(refused, VclusterError) and f"{make.IMAGE} is gone" in str(refused)
        if others:
            assert refused.hint == "vcluster image push --from gpu2\nvcluster up"
            lab.succeed(world, inventory, lab.verb(push_image, source="gpu2"))
            lab.succeed(world, inventory, lab.do_up)
        else:
            assert refused.hint == "vcluster up --pull-image"
            lab.succeed(world, inventory, partial(lab.do_up, renew_image=True))
        wanted = GOOD.id if others else make.base_image(2).id
        assert bases(world) == dict.fromkeys(("gpu1", "gpu2", "gpu3"), wanted)


# fault: kernel/images/push.py: elif not there.is_what_is_named(wanted): → elif not there.id:
def test_a_worker_that_sends_another_image_than_the_plan_showed_is_named() -> None:
    world, inventory = world_of(make.IMAGE, registry=False)
    world.machines["gpu3"].images.clear()
    hold(world, "gpu3", OTHER, make.IMAGE, as_id=GOOD.id)
    planned, done = ups(world, inventory)
    assert f"(or send {GOOD.id[:19]} from gpu3)" in planned["gpu1"]
    assert isinstance(done.error, VclusterError)
    text = f"what gpu3 sent as {GOOD.id[:19]} is {OTHER.id[:19]} there, and is not used"
    assert f"gpu1, gpu2: prepare image: {text}" in str(done.error), done.story()
    assert done.error.hint == "vcluster image push --from gpu3"
    assert not world.machines["gpu1"].images
    assert not world.machines["gpu2"].images
    assert not bases(world)


# fault: kernel/images/supply.py: OneImage(image_id, self.fleet.connections[self.plan.head] → OneImage(image_id, [*self.fleet.connections.values()][-1]
def test_what_the_image_of_the_head_holds_is_by_its_own_word() -> None:
    """A worker that describes the head's image as an old one would have the others run what they have of that."""
    world, inventory = world_of(make.IMAGE)
    hold(world, "gpu1", GOOD, make.IMAGE)
    hold(world, "gpu2", OTHER)
    world.machines["gpu3"].images.clear()
    hold(world, "gpu3", OTHER, make.IMAGE, as_id=GOOD.id)
    _, done = ups(world, inventory)
    assert done.error is None, done.story()
    assert bases(world) == dict.fromkeys(("gpu1", "gpu2", "gpu3"), GOOD.id)
    assert world.machines["gpu2"].images[GOOD.id].content in ("", GOOD.id)


# fault: kernel/images/supply.py: OneImage(image_id, self.fleet.connections[self.plan.head] → OneImage(image_id, [*self.fleet.connections.values()][1]
def test_what_the_head_has_no_more_is_described_by_no_other_host() -> None:
    """Its node keeps running where the base is pruned; a worker's word would have others run what they have."""
    world = make.world((2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, make.inventory(2), lab.do_up)
    del world.machines["gpu1"].images[GOOD.id]
    hold(world, "gpu2", OTHER, as_id=GOOD.id)
    world.machines["gpu3"].images.clear()
    hold(world, "gpu3", OTHER, "colleague/vllm:old")
    _, done = ups(world, make.inventory(3))
    assert f"{make.IMAGE} is gone" in str(done.error), done.story()
    assert bases(world) == dict.fromkeys(("gpu1", "gpu2"), GOOD.id)


# fault: kernel/plan/images.py: canonical(spec.image) != canonical(reference) → not canonical(spec.image)
def test_another_image_in_the_inventory_is_the_one_that_nodes_are_made_from() -> None:
    """The node that runs shows what its own name meant, and nothing of a new one."""
    world, new = make.world((2, 2)), "lab/new:2"
    with lab.inside(world):
        lab.succeed(world, make.inventory(2), lab.do_up)
        world.registry[new] = make.base_image(2)
        lab.succeed(world, make.inventory(2, image=new), lab.do_up)
        assert bases(world) == dict.fromkeys(("gpu1", "gpu2"), make.base_image(2).id)
        assert lab.succeed(world, make.inventory(2, image=new), lab.do_plan).value.empty
