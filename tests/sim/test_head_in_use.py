"""A head that a move made and that is in use, though the move broke off: its key is the one that clients have."""

from __future__ import annotations

import pytest

from tests.support.sim import lab, make
from tests.support.sim.faults import Fault, Script
from tests.support.sim.heads import api_keys, follow_first, report
from tests.support.sim.make import inventory_of as inventory
from tests.support.sim.world import World
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.serving.endpoint.rotate import rotate

BEFORE, AFTER, ELSEWHERE = inventory(1, 2), inventory(2, 1), inventory(3, 1, 2)
KEPT = AFTER.model_copy(update={"keep": "gpu2"})
ROTATE = lab.verb(lambda *words, **more: rotate(*words, **more)[0], grace=0)


def broken_off(start: World, words: Inventory, share: float) -> World:
    """The world in which `up` ended there, of all that it would have done."""
    kept = start.snapshot()
    with lab.inside(start):
        start.api_key = None
        whole = lab.run(start, words, lab.do_up).script.calls
    world = World.again(kept)
    with lab.inside(world):
        world.api_key = None
        lab.run(world, words, lab.do_up, Script({int(len(whole) * share): Fault.KILLED}))
        world.settle()
    return world


def in_use(shares: tuple[float, ...]) -> World:
    """The head moved from gpu1 to gpu2 by runs that broke off, the later ones with `--keep`; then its key was rotated.

    gpu1 keeps its volumes.
    """
    world = make.world((2, 2, 2))
    with lab.inside(world):
        lab.succeed(world, BEFORE, lab.do_up)
        lab.succeed(world, BEFORE, lab.do_serve)
    for share, words in zip(shares, (AFTER, KEPT), strict=False):
        world = broken_off(world, words, share)
    with lab.inside(world):
        world.clock.sleep(7200)
        world.api_key = None
        lab.succeed(world, AFTER, ROTATE)
    assert all(api_keys(world.machines[name]) for name in ("gpu1", "gpu2"))
    return world


def last_change(text: str) -> list[str]:
    """Of the hosts that a question names, in its order: when each was changed last."""
    return [part.split("last changed ")[1][:10] for part in text.split(";") if "last changed" in part]


# fault: kernel/apply/two_heads.py: which_head(inventory, facts, _by_last_change(claims, states), more) → which_head(inventory, facts, claims, more)
# fault: kernel/apply/two_heads.py: return _State(key, changed=changed) → return _State(key)
@pytest.mark.promise("P33")
@pytest.mark.parametrize("shares", [(0.75,), (0.5, 0.66), (0.75, 0.6)], ids=["once", "twice, early", "twice"])
@pytest.mark.parametrize("pruned", [False, True], ids=["", "pruned"])
def test_the_first_step_keeps_the_key_that_clients_have(shares: tuple[float, ...], pruned: bool) -> None:
    """The host of before came first, as the one that this machine had made, and took the rotated key away."""
    world = in_use(shares)
    with lab.inside(world):
        keys = api_keys(world.machines["gpu2"])
        if pruned:
            for machine in world.machines.values():
                machine.boxes.clear()
        refused = lab.run(world, AFTER, lab.do_up)
        assert lab.code(refused) == 3, refused.story()
        assert last_change(report(refused)) == ["2023-11-15", "2023-11-14"]
        for words in follow_first(AFTER, report(refused)):
            lab.succeed(world, words, lab.do_up)
        assert api_keys(world.machines["gpu2"]) == keys


# fault: serving/cluster/up.py: if done or (there and inventory.keep == inventory.head_name) else () → if done else ()
# fault: serving/cluster/up.py: done=same.done or there) → done=same.done)
@pytest.mark.promise("P33")
def test_a_head_that_a_person_has_named_is_first_where_nothing_else_shows_it() -> None:
    """With another host as `head:` the question comes before what each holds is read."""
    world = in_use((0.5, 0.6))
    with lab.inside(world):
        for machine in world.machines.values():
            machine.boxes.clear()
        refused = report(lab.run(world, ELSEWHERE, lab.do_up))
    assert "which host is the head: gpu2 (" in refused, refused


# fault: kernel/checks/heads.py: used and first > → first >
@pytest.mark.promise("P33")
def test_where_the_head_that_runs_is_not_the_first_its_history_is_shown() -> None:
    world = in_use((0.75,))
    with lab.inside(world):
        refused = report(lab.run(world, ELSEWHERE, lab.do_up))
    assert "who changed it last:\non gpu2: " in refused, refused
