"""Every state of a head and of what this laptop knows: the key is kept, or the person reads why it is not.

Refusals are followed as printed, by a person who knows which host the head was.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import product

import pytest

from tests.support.figures import record
from tests.support.sim import lab, oracle
from tests.support.sim.heads import EVIL, api_keys, claim_head, empty, files, report
from tests.support.sim.make import inventory_of as inventory
from tests.support.sim.world import Machine, World
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.members import Named
from vllm_cluster.kernel.plan.spec import ID

CHOSEN = b"sk-chosen"
SERVED = b"org/model"
# What is left of gpu1, which was the head; the hosts of the inventory that `up` gets, its head first.
LEFT = {"there": lambda _: None, "no container": lambda head: head.boxes.clear(), "nothing": empty}
ORDERS = {"it stays": (1, 2, 3), "it moves": (3, 2, 1), "it moves and leaves": (3, 2)}


def orders(machine: Machine) -> list[bytes]:
    """What is to be served there."""
    return [content for name, content in files(machine).items() if name.endswith("wanted.json")]


def follow(world: World, words: Inventory, refused: str, true_id: str, *, gone: bool) -> list[Inventory]:
    """Do what a refusal prints, as a person who knows that gpu1 is the head, or is gone; returns what to bring up then.

    The last of them is the inventory that was refused, or follows it.
    """
    if f"set head: gpu1\nvcluster up\nthen set head: {words.head_name}" in refused and "gpu1" in words.hosts:
        return [words.model_copy(update={"head": "gpu1"}), words]
    lines = re.findall(r"on gpu2, if it is not: (docker .*)$", refused, re.MULTILINE)
    for line in lines:
        remove(world.machines["gpu2"], line.split())
    if lines:
        return [words]
    if not gone and "add its head to hosts: and set head: to it, run vcluster up, and then change" in refused:
        every = [inventory(*numbers, id=words.id) for numbers in ((1, 2, 3), (3, 2, 1))]
        return [*every, words]
    if f"set id: {true_id}" in refused and words.id is None:
        return [words.model_copy(update={"id": true_id})]
    raise AssertionError(f"no step for this person in:\n{refused}")


def remove(machine: Machine, words: list[str]) -> None:
    """What Docker does by `docker rm -f NAME` and `docker volume rm NAME`."""
    if words[:3] == ["docker", "rm", "-f"]:
        machine.boxes = {key: box for key, box in machine.boxes.items() if box.name != words[3]}
    else:
        assert words[:3] == ["docker", "volume", "rm"]
        del machine.volumes[words[3]]


# fault: kernel/checks/docker.py: command_line("docker", "volume", "rm", volume) for volume in _with_key(mine, seen) → *()
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
            outcome = lab.run(world, todo[0], up)
            assert CHOSEN not in api_keys(world.machines[todo[0].head_name]), outcome.story()
            if lab.code(outcome) == 0:
                last = todo.pop(0)
                continue
            refusals += 1
            assert refusals < 5, report(outcome)
            if "vcluster up --former gpu1" in report(outcome):
                up = partial(up, named=Named(former=("gpu1",)))
                continue
            assert (lab.code(outcome), outcome.script.changing) == (3, []), outcome.story()
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
