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
from vllm_cluster.kernel.errors import TimedOut, VclusterError
from vllm_cluster.kernel.plan.diff import graces_of

LEFTOVERS, SLOW = 100, 89.0
THREE = make.inventory_of(1, 2, 3)


def fill(world: World, count: int = LEFTOVERS) -> None:
    """Leave what runs that broke off would leave: containers on one host, and volumes."""
    machine = world.machines["gpu2"]
    node = machine.box("vcluster-lab")
    assert node is not None
    for number in range(count):
        left = replace(node, name=f"vcluster-lab-probe-{number:08x}", id=f"{number + 1:064x}")
        machine.boxes[left.id] = left


def take_time(monkeypatch: pytest.MonkeyPatch, world: World, kind: type, at: Callable[[Any], str]) -> list[float]:
    """Let each removal on that host take a minute and a half, or as long as it may; how much that was."""
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


# fault: serving/cluster/down.py: "down", number, connection.runtime.after, → "down", number, lambda _: connection.runtime.after(10**6),
# fault: kernel/apply/execute.py: len(names), connection.runtime.after, → len(names), lambda _: connection.runtime.after(10**6),
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
    # 30 s are its node's own.
    assert sum(took) <= REMOVAL.most + 30
    if verb == "down":
        assert [bool(world.machines[name].box("vcluster-lab")) for name in ("gpu1", "gpu3")] == [False, False]


# fault: serving/cluster/down.py: docker.volumes.remove(volume, deadline) → docker.volumes.remove(volume, connection.runtime.after(600))
def test_containers_and_volumes_have_one_time_together(monkeypatch: pytest.MonkeyPatch) -> None:
    world = make.world((2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, THREE, lab.do_up)
        slow = (DockerApi, lambda api: api.host), (Volumes, lambda api: api._calls.host)
        took = [take_time(monkeypatch, world, kind, at) for kind, at in slow]
        outcome = lab.run(world, THREE, lab.do_down)
    assert isinstance(outcome.error, TimedOut), outcome.story()
    assert sum(map(sum, took)) <= REMOVAL.first + 3 * REMOVAL.each + 30


# fault: kernel/docker/one_by_one.py: REMOVAL = Times(60.0, CALL_SECONDS, 300.0) → REMOVAL = Times(60.0, 2.0, 300.0)
# fault: kernel/docker/one_by_one.py: min(times.first + times.each * number, times.most) + grace → min(times.first, times.most)
@pytest.mark.parametrize("verb", ["up", "down"])
def test_a_slow_host_that_does_all_it_is_asked_is_done(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node and a pull that take their time to end, three leftovers and two volumes, each in its own call's time."""
    world, words = make.world((2, 2, 2)), THREE

    def slowly(kind: type, seconds: Callable[[tuple[Any, ...]], float], at: Callable[[Any], str]) -> None:
        remove = kind.remove  # type: ignore[attr-defined]

        def removed(api: Any, *asked: Any, **more: Any) -> None:
            if at(api) == "gpu2" and not more:
                *words, deadline = asked
                world.clock.sleep(seconds(tuple(words)))
                if not deadline.left():
                    raise TimedOut("gpu2", "no answer")
            remove(api, *asked, **more)

        monkeypatch.setattr(kind, "remove", removed)

    with lab.inside(world):
        lab.succeed(world, words, lab.do_up)
        fill(world, 3)
        machine = world.machines["gpu2"]
        node = machine.box("vcluster-lab")
        assert node
        if verb == "down":
            machine.boxes["f" * 64] = replace(node, name="vcluster-lab-pull", id="f" * 64)
        else:
            words = make.inventory_of(1, 2, 3, environment={"NCCL_DEBUG": "INFO"})
        slowly(DockerApi, lambda words: words[1] + 20.0, lambda api: api.host)
        slowly(Volumes, lambda _: 20.0, lambda api: api._calls.host)
        lab.succeed(world, words, lab.do_up if verb == "up" else lab.do_down)
    assert not [box.name for box in machine.boxes.values() if "probe" in box.name]


# fault: kernel/plan/diff.py: for name in set(names)) → for name in names)
def test_a_host_that_lists_its_node_often_has_the_time_of_one() -> None:
    assert graces_of("lab", ["vcluster-lab", "vcluster-lab-pull", "vcluster-lab-probe-00000001"]) == 60
    assert graces_of("lab", ["vcluster-lab"] * LEFTOVERS) == 30


# fault: serving/cluster/down.py: if not isinstance(self.failures[name], TimedOut) →
def test_a_host_that_took_too_long_is_not_one_to_reach_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = make.world((2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, THREE, lab.do_up)
        fill(world)
        take_time(monkeypatch, world, DockerApi, lambda api: api.host)
        world.machines["gpu3"].reachable = False
        outcome = lab.run(world, THREE, lab.do_down)
    assert isinstance(outcome.error, VclusterError)
    assert outcome.error.fixes[-2:] == ["once gpu3 can be reached:", "vcluster down"]


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
    world.clock.sleep(REMOVAL.first + 2 * REMOVAL.each + 10)
    with pytest.raises(TimedOut, match="down: 1 of 2 left after 2 min"), time.one():
        pytest.fail("nothing is begun")
