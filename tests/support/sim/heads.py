"""What a test of heads reads from machines, and a worker that calls itself the head."""

from __future__ import annotations

import re

from tests.support.sim import lab
from tests.support.sim.lab import Outcome
from tests.support.sim.make import inventory_of as inventory
from tests.support.sim.world import Machine, World
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.spec import HEAD_ADDRESS, ROLE, SECRET

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
    if f"set head: gpu1\nvcluster up\nthen set head: {words.head_name}" in refused and "gpu1" in words.hosts:
        return [words.model_copy(update={"head": "gpu1"}), words]
    lines = set(re.findall(r"on (gpu[23]), if it is not: (docker .*)$", refused, re.MULTILINE))
    for host, line in lines:
        remove(world.machines[host], line.split())
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
