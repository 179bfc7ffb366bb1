"""The clusters that versions before left behind, in the simulated world: what an upgrade meets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.sim.life import NODE_PROGRAM
from tests.support.sim.world import Box, Machine, Picture, Volume, World
from vllm_cluster.kernel.inventory.model import Inventory

FOLDER = Path(__file__).parents[1] / "fixtures" / "landed"


def serving() -> tuple[World, Inventory]:
    """Two hosts, up and serving `org/model`, and their inventory; the nodes run and their model is ready."""
    words = _read(FOLDER / "inventory.json")
    return _running([_machine(name, host["address"]) for name, host in words["hosts"].items()], words)


def of_format(number: int) -> tuple[World, Inventory]:
    """The same as the last version left it that wrote the head's files in this format (1), or the first one (2, 3)."""
    recorded = _read(FOLDER / "formats" / f"{number}.json")
    machines = []
    for name, host in recorded["hosts"].items():
        machine = Machine(name, host["address"], 2, f"machine-{name[-1]}")
        machine.images = {row["id"]: Picture(**row) for row in host["images"]}
        for volume, row in host["volumes"].items():
            files = {path: text.encode() for path, text in row["files"].items()}
            machine.volumes[volume] = Volume(volume, row["labels"], files)
        box = Box(**host["container"], files={NODE_PROGRAM.removeprefix("/"): b""})
        machine.boxes[box.id] = box
        machines.append(machine)
    found = _running(machines, recorded["inventory"])
    for machine in machines:
        # The simulation's node programs are of this version, and have written some again.
        for volume, row in recorded["hosts"][machine.name]["volumes"].items():
            old = {path: text.encode() for path, text in row["files"].items() if path != "status.json"}
            machine.volumes[volume].files |= old
    return found


def _running(machines: list[Machine], words: dict[str, Any]) -> tuple[World, Inventory]:
    base = next(image for image in machines[0].images.values() if words["image"] in image.tags)
    world = World(machines, {words["image"]: base})
    for machine in machines:
        for box in machine.boxes.values():
            world.start(machine, box)
    world.settle()
    return world, Inventory.model_validate(words)


def labels(host: str) -> dict[str, str]:
    """The labels of a host's container."""
    found: dict[str, str] = _read(FOLDER / "hosts" / host / "container.json")["body"]["Labels"]
    return found


def statuses() -> dict[str, bytes]:
    """Each status.json that its node program wrote, by what it is about."""
    return {path.stem: path.read_bytes() for path in sorted((FOLDER / "status").glob("*.json"))}


def _machine(name: str, address: str) -> Machine:
    folder = FOLDER / "hosts" / name
    machine = Machine(name, address, 2, f"machine-{name}")
    machine.images = {row["id"]: Picture(**row) for row in _read(folder / "images.json")}
    for volume, row in _read(folder / "volumes.json").items():
        machine.volumes[volume] = Volume(volume, row["labels"], _files(folder / "volumes" / volume))
    code = {path.removesuffix(".txt"): content for path, content in _files(FOLDER / "container").items()}
    box = Box(**_read(folder / "container.json"), files=code)
    machine.boxes[box.id] = box
    return machine


def _files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _read(path: Path) -> Any:
    return json.loads(path.read_text())
