"""What a test of heads reads from machines, and a worker that calls itself the head."""

from __future__ import annotations

import re

from tests.support.sim import lab
from tests.support.sim.lab import Outcome
from tests.support.sim.make import inventory_of as inventory
from tests.support.sim.world import Machine, World
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.spec import HEAD_ADDRESS, ROLE, SECRET
from vllm_cluster.wire.keys import KeyFile

EVIL = b"evil/model"


def labels_of(machine: Machine) -> list[dict[str, str]]:
    """Those of its containers and volumes."""
    return [box.labels for box in machine.boxes.values()] + [one.labels for one in machine.volumes.values()]


def files(machine: Machine) -> dict[str, bytes]:
    """What its volumes hold, by name."""
    return {name: content for volume in machine.volumes.values() for name, content in volume.files.items()}


def api_keys(machine: Machine) -> set[bytes]:
    """The API keys that it holds."""
    return {content for name, content in files(machine).items() if name.startswith("api-key")}


def contents(world: World) -> dict[str, tuple[frozenset[str], frozenset[str], frozenset[bytes]]]:
    """The containers, volumes and API keys of each machine: what a refused verb leaves as it was."""
    machines = world.machines.items()
    return {name: (frozenset(one.boxes), frozenset(one.volumes), frozenset(api_keys(one))) for name, one in machines}


def empty(machine: Machine) -> None:
    """Take all containers and volumes away."""
    machine.boxes.clear()
    machine.volumes.clear()


def move_elsewhere(world: World, before: Inventory, after: Inventory) -> None:
    """Serve, and let another laptop move the head: this one remembers the head that it has made."""
    lab.succeed(world, before, lab.do_up)
    lab.succeed(world, before, lab.do_serve)
    mine = dict(world.heads)
    world.heads.clear()
    lab.succeed(world, before, lab.do_up)
    lab.succeed(world, after, lab.do_up)
    world.heads = mine


def claim_head(world: World, name: str = "gpu2", of: str = "gpu1", *, own: bool = False) -> None:
    """Let a worker call itself the head, with an order and an API key of its own choice; `own`: by its own address."""
    liar, head = world.machines[name], world.machines[of]
    key = "sk-chosen"
    identity = lab.fast_secret_id("lab", "api-key", key)
    order = head.volumes["vcluster-lab-state"].files["wanted.json"].replace(b"org/model", EVIL)
    liar.volumes["vcluster-lab-state"].files.update(head.volumes["vcluster-lab-state"].files | {"wanted.json": order})
    for labels in labels_of(liar):
        labels.update({SECRET + "api-key": identity} | ({ROLE: "head"} if ROLE in labels else {}))
        labels.update({HEAD_ADDRESS: liar.address} if own and HEAD_ADDRESS in labels else {})
    for volume in [one for name, one in liar.volumes.items() if "secrets" in name]:
        volume.files[f"api-key-{identity}"] = key.encode()


def report(outcome: Outcome) -> str:
    """All that a person reads."""
    texts = [f"{event.host}: {event.text}" for event in outcome.events]
    return "\n".join([*texts, str(outcome.error), getattr(outcome.error, "hint", "") or ""])


def follow(world: World, words: Inventory, refused: str, true_id: str, *, gone: bool) -> list[Inventory]:
    """Do what a refusal prints, as a person who knows that gpu1 is the head, or is gone; returns what to bring up then.

    The last of them is the inventory that was refused, or follows it.
    """
    head = words.head_name
    if f"if gpu1 is the head: set head: gpu1\nvcluster up --keep gpu1\nthen set head: {head}" in refused:
        return [words.model_copy(update={"head": "gpu1", "keep": "gpu1"}), words]
    if "if gpu1 is the head:\nvcluster up --keep gpu1" in refused:
        return [words.model_copy(update={"keep": "gpu1"})]
    if not gone and "add its head to hosts: and set head: to it, run vcluster up, and then change" in refused:
        every = [inventory(*numbers, id=words.id) for numbers in ((1, 2, 3), (3, 2, 1))]
        return [*every, words]
    if "if none of them is, and the head is gone for good:\nvcluster up --new-key" in refused:
        return [words.model_copy(update={"keep": ""})]
    if f"set id: {true_id}" in refused and words.id is None:
        return [words.model_copy(update={"id": true_id})]
    raise AssertionError(f"no step for this person in:\n{refused}")


def follow_first(words: Inventory, refused: str) -> list[Inventory]:
    """Do the first step of a refusal, as a person who takes any first line; returns what to bring up then."""
    steps = r"(?:^|: )if (\w+) is the head:(?: set head: \w+)?\nvcluster up --keep (\w+)(\nthen set)?"
    one = re.search(steps, refused, re.MULTILINE)
    assert one, refused
    keep = {"keep": one[2]} | ({"head": one[1]} if one[3] else {})
    return [words.model_copy(update=keep), *([words] if one[3] else [])]


def forge_key(machine: Machine, key: str = "sk-chosen") -> None:
    """Let a host have a volume with an API key that looks as one that was rotated, and no node."""
    identity = lab.fast_secret_id("lab", "api-key", key)
    machine.boxes.clear()
    (volume,) = [one for name, one in machine.volumes.items() if "secrets" in name]
    volume.labels[SECRET + "api-key"] = identity
    volume.files[f"api-key-{identity}"] = KeyFile(key, identity).text().encode()
