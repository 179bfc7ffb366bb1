"""What the programs do that run in containers: `docker exec --interactive`, `docker start --attach --interactive`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tests.support.sim import pulls, shell
from tests.support.sim.world import Box, Machine, World
from vllm_cluster.kernel.node.on_host import append_line

# Those that wait for a message before they do anything.
READERS = ("append_line", "batch_job", "check", "hub_listing", "model_cache", "remove_model")


def called(command: Sequence[str]) -> str:
    """The call in a line."""
    return f"docker exec {_name(command[4:])}" if command[1] == "exec" else f"docker start {command[4]}"


def changes(command: Sequence[str]) -> bool:
    """Whether it changes something on the host."""
    return command[1] == "start" or _name(command[4:]) == "append_line"


def carries(command: Sequence[str], machine: Machine) -> bool:
    """Whether it is what moves the blobs of an image."""
    box = machine.box(command[4]) if command[1] == "start" else None
    return box is not None and _name(box.argv) == "carry_image"


def talks(command: Sequence[str], machine: Machine) -> bool:
    """Whether it is asked more than once."""
    box = machine.box(command[4]) if command[1] == "start" else None
    return _name(box.argv if box else command[4:]) in ("batch_job", "model_cache")


def _name(argv: Sequence[str]) -> str:
    """What a program is called: one of the package by its name, any other by its command."""
    return argv[5] if argv[:3] == ["python3", "-u", "-c"] else argv[0]


class Program:
    """One program, from its start to its end."""

    def __init__(self, world: World, machine: Machine, command: Sequence[str]) -> None:
        self._world, self.machine = world, machine
        self._starts, self._reference = command[1] == "start", command[4 if command[1] == "start" else 3]
        self._argv, self._input = list(command[4:]), b""
        self._box = machine.box(self._reference)
        self.name, self.errors, self.code = self._reference, "", 0

    def start(self) -> tuple[str, int]:
        """Start it: what Docker prints where that cannot be, and the exit code then."""
        if self._box is None:
            return f"Error: No such container: {self._reference}", 1
        if self._starts:
            self._world.start(self.machine, self._box)
            self._argv = self._box.argv
        elif self._box.state != "running":
            return f"Error response from daemon: container {self._box.id} is not running", 1
        self.name = _name(self._argv)
        return "", 0

    @property
    def fed(self) -> bool:
        """Whether it waits for no message any more."""
        return self.name not in READERS or bool(self._input)

    def take(self, data: bytes) -> None:
        """A message: what it asks for is done at once."""
        self._input += data
        if self.name == "append_line" and self._box:
            order = json.loads(data)
            files, inside, _ = self.machine.place(self._box, order["path"])
            if len(files.get(inside, b"")) > append_line.MAX_BYTES:
                files[f"{inside}.1"] = files.pop(inside)
            files[inside] = files.get(inside, b"") + order["line"].encode() + b"\n"

    def _cache(self, order: dict[str, str]) -> dict[str, object]:
        """The size of a model in the cache; where it is to be removed, it is gone then."""
        models, folder = self.machine.models, order["folder"]
        row: dict[str, object] = {"end": True, "there": folder in models, "size": models.get(folder, 0)}
        if folder == self.machine.pulled_elsewhere:
            return {**row, "locked": True}
        if order["do"] == "remove":
            models.pop(folder, None)
        return row

    def end(self) -> bytes:
        """What it prints until its end."""
        world, machine, box = self._world, self.machine, self._box
        assert box
        if self._starts:
            box.state = "exited"
            if box.body["HostConfig"].get("AutoRemove"):
                world.remove(machine, box)
        if self.name == "/bin/sh":
            out, self.errors, code = shell.run(self._argv[2])
            self.code = code or 0
            return out.encode()
        rows: list[object] = []
        match self.name:
            case "append_line":
                rows = [{"appended": True}]
            case "batch_job":
                rows = [{"batches": world.batches}]
            case "remove_model":
                rows = [self._cache(json.loads(self._input))]
            case "model_cache":
                rows = pulls.cache(machine, json.loads(self._input.splitlines()[-1]))
            case "hub_listing":
                rows = pulls.hub()
            case "vllm_load":
                rows = [{"now": world.host_time(machine), "requests": _requests(world, box)}]
            case "check" if machine.name in world.answers:
                rows = [{"v": 1, **world.answers[machine.name]}]
            case "inspect_image":
                image = machine.images.get(box.image)
                rows = [{"python": "3.12.3", "machine": "x86_64", "glibc": "2.35", "have": image.have if image else {}}]
        return "".join(f"{line}\n" for line in ("some banner of the image", *map(json.dumps, rows))).encode()


def _requests(world: World, box: Box) -> dict[str, int]:
    """How many requests each replica works on; all of them are at the first."""
    if world.requests is None or isinstance(world.requests, dict):
        return world.requests or {}
    return {str(one): 0 if one else world.requests for one in box.life.get("replicas", ())}
