"""Every place where a run can break off, one after the other, in small worlds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.support.depth import FULL
from tests.support.figures import record
from tests.support.sim import lab, make, oracle
from tests.support.sim.faults import Fault, Killed, Script
from tests.support.sim.lab import Outcome, Verb
from tests.support.sim.world import Box, World
from vllm_cluster.kernel.inventory.model import Inventory

AFTER = 3  # runs that a broken one and what was still under way may need to be repaired


def scene(name: str) -> tuple[World, Inventory, Verb]:
    """A world, an inventory for it, and the verb that is broken off."""
    world, inventory, verb = _scene(name)
    for machine in world.machines.values():
        make.neighbours(machine)
    return world, inventory, verb


def _scene(name: str) -> tuple[World, Inventory, Verb]:
    if name == "up from nothing":
        return make.world((2, 2), present=False), make.inventory(2), lab.do_up
    world, inventory = make.world((2, 2)), make.inventory(2)
    with lab.inside(world):
        assert lab.run(world, inventory, lab.do_up).error is None
        if name == "up with one changed host":
            inventory = make.inventory(2, {"gpu2": {"gpus": 1}})
        elif name == "up after the head is lost":
            machine = world.machines["gpu1"]
            machine.boxes.clear()
            machine.volumes.clear()
        elif name == "up with another head":
            inventory = make.inventory(2, head="gpu2")
        elif name == "up with new settings":
            inventory = make.inventory(2, environment={"NCCL_DEBUG": "INFO"})
        elif name == "up with a stopped and a paused node":
            world.stop(world.machines["gpu1"], _node(world, "gpu1"), gently=False, code=137)
            _node(world, "gpu2").state = "paused"
        elif name == "stop":
            assert lab.run(world, inventory, lab.do_serve).error is None
            return world, inventory, lab.do_stop
        elif name == "serve":
            return world, inventory, lab.do_serve
        elif name == "down":
            return world, inventory, lab.do_down
    return world, inventory, lab.do_up


def _node(world: World, host: str) -> Box:
    box = world.machines[host].box("vcluster-lab")
    assert box
    return box


# Of `up`, CI has the two that meet most; each night has all.
SCENES = (
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("up from nothing", "up with another head")),
    *(
        pytest.param(name, marks=pytest.mark.deep)
        for name in (
            "up with one changed host",
            "up after the head is lost",
            "up with new settings",
            "up with a stopped and a paused node",
        )
    ),
    "serve",
    "stop",
    "down",
)


def check(world: World, inventory: Inventory, verb: Verb, told: Callable[[], str]) -> Outcome:
    """Run the verb again until it is done, at most as often as may be needed, and judge the world."""
    for _ in range(AFTER):
        world.settle(40)
        again = lab.run(world, inventory, verb)
        if again.error is None:
            break
    assert again.error is None, f"{told()}\n--- again\n{again.story()}"
    try:
        if verb is lab.do_down:
            oracle.nothing_left(world)
        else:
            oracle.converged(world, inventory)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{told()}\n--- again\n{again.story()}") from None
    return again


def breaks(normal: Outcome) -> Iterator[tuple[int, Fault, int]]:
    """Every call with every fault; a killed controller's other hosts stop, or continue for a while.

    CI's share: every call that changes something with a controller that is killed before it or with one of those
    that lose its answer, in turn; every second look with one fault, in turn. A controller that is killed at a look
    leaves the world that the next change finds.
    """
    seen: Counter[tuple[str, str]] = Counter()
    changes = 0
    for call in normal.script.calls:
        seen[call.host, call.what] += 1
        if not call.changes and seen[call.host, call.what] > 2:
            continue  # the same look again, while a person waits
        after = (Fault.KILLED_AFTER, Fault.LOST_AFTER, Fault.KILLED_LATE)[changes // 2 % 3]
        turn = list(Fault)[call.index // 2 % len(Fault)]
        look = set() if turn.kills or call.index % 2 else {turn}
        share = {(Fault.KILLED, after)[changes % 2]} if call.changes else look
        for fault in Fault if FULL else share:
            spares = (0, 5) if FULL else (5 * (changes // 2 % 2),)
            for spare in spares if fault is Fault.KILLED else (0,):
                yield call.index, fault, spare
        changes += call.changes


@pytest.mark.promise("P1", "P19")
@pytest.mark.parametrize("name", SCENES)
def test_broken_off_at_every_call(name: str) -> None:
    began, runs, longest = time.monotonic(), 0, 0.0
    world, inventory, verb = scene(name)
    start, foreign = world.snapshot(), world.foreign()
    with lab.inside(world):
        normal = lab.run(world, inventory, verb)
    assert normal.error is None, normal.story()
    for index, fault, spare in breaks(normal):
        world = World.again(start)
        with lab.inside(world):
            broken = lab.run(world, inventory, verb, Script({index: fault}, spare=spare))
            assert broken.error is not None or broken.script.met, broken.story()
            if fault.kills:
                assert isinstance(broken.error, Killed), broken.story()
            if fault in (Fault.LOST, Fault.LOST_AFTER) and normal.script.calls[index].what != "connect":
                assert getattr(broken.error, "exit_code", 1) == 1, f"told as never connected\n{broken.story()}"
            again = check(world, inventory, verb, broken.story)
        runs += 2
        longest = max(longest, again.seconds - normal.seconds)
        assert world.foreign() == foreign, f"something foreign was touched\n{broken.story()}"
    seconds = time.monotonic() - began
    ways = f"{len(Fault)} ways" if FULL else "CI's share of the ways"
    figure = f"{runs} runs in {ways}, all converged; {runs / seconds:.0f}/s; a rerun took {longest:.1f} s more at most"
    record("P19" if name == "down" else "P1", f"sim: {name}, broken off at every call", figure, True)
