"""Every state of a head and of what this laptop knows: the key is kept, or the person reads why it is not.

Refusals are followed as printed, by a person who knows which host the head was.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest

from tests.support.figures import record
from tests.support.sim import lab, make, oracle
from tests.support.sim.heads import (
    EVIL,
    api_keys,
    claim_head,
    contents,
    empty,
    files,
    follow,
    labels_of,
    move_elsewhere,
    report,
)
from tests.support.sim.make import inventory_of as inventory
from tests.support.sim.world import Machine
from vllm_cluster.kernel.plan.members import Named
from vllm_cluster.kernel.plan.spec import ID

CHOSEN = b"sk-chosen"
SERVED = b"org/model"


def without_image(machine: Machine) -> None:
    """What Docker leaves of a node after `docker system prune --all`, once its container has ended."""
    machine.boxes.clear()
    machine.images.clear()


# What is left of gpu1, which was the head; the hosts of the inventory that `up` gets, its head first.
Leave = Callable[[Machine], object]
LEFT: dict[str, Leave] = {"there": lambda _: None, "no container": lambda head: head.boxes.clear(), "nothing": empty}
FORMER: dict[str, Leave] = {**LEFT, "no image": without_image}
ORDERS = {"it stays": (1, 2, 3), "it moves": (3, 2, 1), "it moves and leaves": (3, 2)}


def orders(machine: Machine) -> list[bytes]:
    """What is to be served there."""
    return [content for name, content in files(machine).items() if name.endswith("wanted.json")]


# fault: kernel/checks/heads.py: (own or all(one.trusted and one.runs for one in claims)) → True
# fault: kernel/checks/docker.py: if same and is_head: → if same:
# fault: serving/cluster/up.py: new_key=stops.anything and _makes_new_key(inventory, seen) → new_key=False
@pytest.mark.promise("P33", "P47")
@pytest.mark.parametrize("pinned", [False, True], ids=["", "id"])
@pytest.mark.parametrize(("left", "order"), [*product(LEFT, ORDERS)])
@pytest.mark.parametrize("knows", [True, False], ids=["made here", "not known here"])
@pytest.mark.parametrize("lies", [False, True], ids=["honest", "a worker lies"])
def test_up_ends_with_the_key_of_the_head(left: str, order: str, knows: bool, lies: bool, pinned: bool) -> None:
    with lab.cluster(3, lab.do_up, lab.do_serve) as world:
        first = world.machines["gpu1"]
        (key,), true_id = api_keys(first), next(iter(first.boxes.values())).labels[ID]
        if lies:
            claim_head(world)
        LEFT[left](first)
        if not knows:
            world.heads.clear()
        world.api_key = None
        person = lab.Person(*[True] * 20)
        up = partial(lab.do_up, confirm=person)
        wanted = inventory(*ORDERS[order], id=true_id if pinned else None)
        todo, refusals = [wanted], 0
        while todo:
            before, outcome = contents(world), lab.run(world, todo[0], up)
            assert CHOSEN not in api_keys(world.machines[todo[0].head_name]), outcome.story()
            if lab.code(outcome) == 0:
                last = todo.pop(0)
                continue
            refusals += 1
            assert refusals < 5, report(outcome)
            if "vcluster up --former gpu1" in report(outcome):
                up = partial(up, named=Named(former=("gpu1",)))
                continue
            assert (lab.code(outcome), contents(world)) == (3, before), outcome.story()
            todo[:1] = follow(world, todo[0], report(outcome), true_id, gone=left == "nothing")
        head = world.machines[wanted.head_name]
        assert EVIL not in b"".join(orders(head))
        kept = api_keys(head) == {key}
        assert kept is (SERVED in b"".join(orders(head)))
        assert kept or any("the endpoint gets a new API key" in question for question in person.asked), person.asked
        # A person's id is their word that the head is gone for good.
        assert kept or left == "nothing" or (pinned and order == "it moves and leaves")
        if not lies:
            oracle.converged(world, last)
    record("P33", "sim: states of a head, of a laptop and of a worker, refusals followed", "key kept, or asked", True)


# fault: kernel/plan/identity.py: if not who_denies(inventory, name, facts)] → if True]
@pytest.mark.promise("P47")
@pytest.mark.parametrize("pinned", [False, True], ids=["", "id"])
# Of two hosts nothing shows that the head had moved, once nothing is left of it: to this laptop it moves then.
@pytest.mark.parametrize(
    ("third", "left"), [*product([True, False], ["no container", "no image"]), (True, "nothing")], ids=str
)
def test_a_former_head_that_this_laptop_remembers_chooses_no_key(left: str, third: bool, pinned: bool) -> None:
    """A colleague moved the head on. Once the new one had lost its node, the host of before chose key and order."""
    before, after = (inventory(*numbers) for numbers in (((2, 1, 3), (1, 2, 3)) if third else ((2, 1), (1, 2))))
    world = make.world((2, 2, 2))
    with lab.inside(world):
        move_elsewhere(world, before, after)
        head = world.machines["gpu1"]
        (key,), true_id = api_keys(head), next(iter(head.boxes.values())).labels[ID]
        claim_head(world, own=True)
        FORMER[left](head)
        world.api_key = None
        wanted = after.model_copy(update={"id": true_id if pinned else None})
        person = lab.Person(*[True] * 20)
        for _ in range(4):
            now, outcome = contents(world), lab.run(world, wanted, partial(lab.do_up, confirm=person))
            assert CHOSEN not in api_keys(head), outcome.story()
            if lab.code(outcome) == 0:
                break
            assert (lab.code(outcome), contents(world)) == (3, now), outcome.story()
            (wanted,) = follow(world, wanted, report(outcome), true_id, gone=left == "nothing")
        assert lab.code(outcome) == 0, outcome.story()
        assert EVIL not in b"".join(orders(head))
        assert api_keys(head) == {key} or (left == "nothing" and "gets a new API key" in person.asked[-1])
    record("P47", "sim: a remembered head that a colleague's laptop moved on", "no key, no order of it", True)


@pytest.mark.promise("P47", "P32")
@pytest.mark.parametrize("known", [True, False], ids=["made here", "not known here"])
@pytest.mark.parametrize("mine", ["lies", "lost all"])
def test_down_without_the_head_removes_nothing_of_others_whose_head_has_its_address(mine: str, known: bool) -> None:
    """Two pairs of hosts on a cable each: mine names a host of theirs, and the id was read off labels."""
    world = make.world((2, 2, 2, 2))
    world.machines["gpu4"].address = "10.0.0.1"
    theirs = inventory(4, 3)
    hosts = {**theirs.hosts, "gpu4": theirs.hosts["gpu4"].model_copy(update={"address": "10.0.0.1"})}
    with lab.inside(world):
        lab.succeed(world, theirs.model_copy(update={"hosts": hosts}), lab.do_up)
        world.heads.clear()
        lab.succeed(world, inventory(1, 2), lab.do_up)
        (other,) = {labels[ID] for labels in labels_of(world.machines["gpu3"])}
        worker = world.machines["gpu2"]
        for labels in labels_of(worker):
            labels.update({ID: other})
        if mine == "lost all":
            empty(worker)
        if not known:
            world.heads.clear()
        world.machines["gpu1"].reachable = False
        before = set(world.machines["gpu3"].volumes)
        outcome = lab.run(world, inventory(1, 2, 3), lab.do_down)
        assert (lab.code(outcome), outcome.script.changing) == (3, []), outcome.story()
        assert world.machines["gpu3"].boxes and set(world.machines["gpu3"].volumes) == before
