"""A host whose Docker takes its time for each of many leftovers: the others are done, and the run ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.sim import lab, make
from tests.support.sim.world import World
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.docker.client import DockerApi
from vllm_cluster.kernel.docker.one_by_one import REMOVAL, OneByOne
from vllm_cluster.kernel.docker.volumes import Volumes
from vllm_cluster.kernel.errors import TimedOut

LEFTOVERS, SLOW = 100, 59.0
THREE = make.inventory_of(1, 2, 3)


def fill(world: World) -> None:
    """Leave what runs that broke off would leave: containers on one host, and volumes."""
    machine = world.machines["gpu2"]
    node = machine.box("vcluster-lab")
    assert node is not None
    for number in range(LEFTOVERS):
        left = replace(node, name=f"vcluster-lab-probe-{number:08x}", id=f"{number + 1:064x}")
        machine.boxes[left.id] = left


def take_time(monkeypatch: pytest.MonkeyPatch, world: World, kind: type, at: Callable[[Any], str]) -> list[float]:
    """Let each removal on that host take a minute, or as long as it may; how much that was."""
    remove, took = kind.remove, list[float]()  # type: ignore[attr-defined]

    def slowly(api: Any, *words: Any) -> None:
        if at(api) == "gpu2":
            *_, deadline = words
            took.append(min(SLOW, deadline.left()))
            world.clock.sleep(took[-1])
            if not deadline.left():
                raise TimedOut("gpu2", "no answer")
        remove(api, *words)

    monkeypatch.setattr(kind, "remove", slowly)
    return took


# fault: serving/cluster/down.py: len(containers) + len(volumes), connection.runtime.after) → 1, lambda _: connection.runtime.after(10**6))
# fault: kernel/apply/execute.py: time = OneByOne(connection.name, stage.title, number, connection.runtime.after) → time = OneByOne(connection.name, stage.title, 10**6, lambda _: connection.runtime.after(10**6))
@pytest.mark.parametrize("verb", ["up", "down"])
def test_leftovers_of_one_host_end_no_later_than_its_time(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make.world((2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, THREE, lab.do_up)
        fill(world)
        took = take_time(monkeypatch, world, DockerApi, lambda api: api.host)
        outcome = lab.run(world, THREE, lab.do_up if verb == "up" else lab.do_down)
    assert isinstance(outcome.error, TimedOut), outcome.story()
    assert f"of {LEFTOVERS} left after" in outcome.error.message or f"of {LEFTOVERS + 3} left" in outcome.error.message
    assert sum(took) <= REMOVAL.most
    if verb == "down":
        assert [bool(world.machines[name].box("vcluster-lab")) for name in ("gpu1", "gpu3")] == [False, False]


# fault: serving/cluster/down.py: docker.volumes.remove(volume, deadline) → docker.volumes.remove(volume, connection.runtime.after(60))
def test_containers_and_volumes_have_one_time_together(monkeypatch: pytest.MonkeyPatch) -> None:
    world = make.world((2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, THREE, lab.do_up)
        slow = (DockerApi, lambda api: api.host), (Volumes, lambda api: api._calls.host)
        took = [take_time(monkeypatch, world, kind, at) for kind, at in slow]
        outcome = lab.run(world, THREE, lab.do_down)
    assert isinstance(outcome.error, TimedOut), outcome.story()
    assert sum(map(sum, took)) <= REMOVAL.first + 5 * REMOVAL.each


# fault: kernel/plan/diff.py: return 30 if name in (node_name(cluster), container_name(cluster)) else 0 → return 30
def test_a_leftover_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its program ignores the signal to end, as the first process of a container does."""
    world, graces = make.world((2, 2, 2)), set[tuple[bool, int]]()
    remove = DockerApi.remove

    def noted(api: DockerApi, container: str, grace: int = 30, deadline: Deadline | None = None) -> None:
        graces.add((container < f"{LEFTOVERS + 1:064x}", grace))
        remove(api, container, grace, deadline)

    with lab.inside(world):
        lab.succeed(world, THREE, lab.do_up)
        fill(world)
        monkeypatch.setattr(DockerApi, "remove", noted)
        lab.succeed(world, THREE, lab.do_down)
    assert graces == {(True, 0), (False, 30)}


def test_another_failure_is_kept_as_it_is() -> None:
    world = make.world((2,))
    time = OneByOne("gpu1", "down", 2, lambda seconds: Deadline.after(seconds, world.clock))
    with pytest.raises(TimedOut, match="no answer"), time.one():
        raise TimedOut("gpu1", "no answer")
    with time.one():
        pass
    world.clock.sleep(REMOVAL.first + 10)
    with pytest.raises(TimedOut, match="down: 1 of 2 left after 1 min"), time.one():
        pytest.fail("nothing is begun")
