"""Images that are removed from hosts of which one takes its time: the others are free meanwhile, and it ends."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.sim import lab, make
from tests.support.sim.world import Picture, World
from vllm_cluster.features.images.action import prune_images
from vllm_cluster.kernel.docker.client import DockerApi
from vllm_cluster.kernel.errors import TimedOut
from vllm_cluster.kernel.events import Emit
from vllm_cluster.kernel.hosts.runtime import Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.spec import BASE_IMAGE, BUILT_FOR

THREE = make.inventory_of(1, 2, 3)


def pruned(inventory: Inventory, emit: Emit, runtime: Runtime) -> int:
    """One `image prune --yes`."""
    return prune_images(inventory, emit, confirm=lambda *_: True, runtime=runtime)


def with_unused(count: int) -> World:
    """Three hosts, on the second of which are node images that no container is made from."""
    world = make.world((2, 2, 2))
    images = world.machines["gpu2"].images
    base = next(iter(images))
    for number in range(count):
        labels = {BUILT_FOR: "lab", BASE_IMAGE: f"sha256:{number:064x}"}
        made = Picture(f"sha256:{number + 10**9:064x}", [f"vcluster-node:{number:012x}-ray2.0"], {}, labels)
        assert made.id != base
        images[made.id] = made
    return world


# fault: features/images/action.py: REMOVE_SECONDS, 30.0, 600.0) → REMOVE_SECONDS, 30.0, 3600.0)
# fault: features/images/action.py: {name: facts[name] for name in found} → facts
def test_a_host_with_a_long_list_and_a_slow_docker_has_ten_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had an hour, in which no host of the inventory could be changed."""
    world, took, held = with_unused(200), list[float](), set[str]()
    remove = DockerApi.remove_image

    def slowly(api: DockerApi, reference: str, deadline: Any = None) -> None:
        held.update(name for name, machine in world.machines.items() if machine.lock)
        took.append(min(29.0, deadline.left()))
        world.clock.sleep(took[-1])
        if not deadline.left():
            raise TimedOut("gpu2", "no answer")
        remove(api, reference, deadline)

    monkeypatch.setattr(DockerApi, "remove_image", slowly)
    with lab.inside(world):
        outcome = lab.run(world, THREE, pruned)
    assert isinstance(outcome.error, TimedOut), outcome.story()
    assert "left after 10 min" in outcome.error.message
    assert 570 < sum(took) <= 601
    assert held == {"gpu2"}


def test_a_host_with_a_few_images_has_the_time_for_each() -> None:
    world = with_unused(4)
    with lab.inside(world):
        # The last one that was used is kept.
        assert lab.succeed(world, THREE, pruned).value == 3
