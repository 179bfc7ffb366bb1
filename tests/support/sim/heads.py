"""What a test of heads reads from machines, and a worker that calls itself the head."""

from __future__ import annotations

from tests.support.sim import lab
from tests.support.sim.lab import Outcome
from tests.support.sim.world import Machine, World
from vllm_cluster.kernel.plan.spec import ROLE, SECRET

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


def empty(machine: Machine) -> None:
    """Take all containers and volumes away."""
    machine.boxes.clear()
    machine.volumes.clear()


def claim_head(world: World, name: str = "gpu2", of: str = "gpu1") -> None:
    """Let a worker call itself the head, with an order and an API key of its own choice."""
    liar, head = world.machines[name], world.machines[of]
    key = "sk-chosen"
    identity = lab.fast_secret_id("lab", "api-key", key)
    order = head.volumes["vcluster-lab-state"].files["wanted.json"].replace(b"org/model", EVIL)
    liar.volumes["vcluster-lab-state"].files.update(head.volumes["vcluster-lab-state"].files | {"wanted.json": order})
    for labels in labels_of(liar):
        labels.update({SECRET + "api-key": identity} | ({ROLE: "head"} if ROLE in labels else {}))
    for volume in [one for name, one in liar.volumes.items() if "secrets" in name]:
        volume.files[f"api-key-{identity}"] = key.encode()


def report(outcome: Outcome) -> str:
    """All that a person reads."""
    texts = [f"{event.host}: {event.text}" for event in outcome.events]
    return "\n".join([*texts, str(outcome.error), getattr(outcome.error, "hint", "") or ""])
