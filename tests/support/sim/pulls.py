"""What a pull meets on a host: the program beside its cache, the answer of its hub, and its own container's end."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vllm_cluster.kernel.plan.pull import PLAN, STATUS
from vllm_cluster.wire.pull import ModelFile, digest_of

if TYPE_CHECKING:
    from tests.support.sim.world import Box, Machine, World

COMMIT = "c" * 40
FILES = (ModelFile("config.json", 800, "a" * 64), ModelFile("model.safetensors", 5 << 20, "b" * 64))
_ROWS = [{"path": file.path, "size": file.size, "blob": file.blob} for file in FILES]
_BYTES = sum(file.size for file in FILES)
_MANIFEST = {"commit": COMMIT, "digest": digest_of(FILES), "bytes": _BYTES}


def hub() -> list[object]:
    """What the hub lists, as the program on a host prints it."""
    return [*_ROWS, {"commit": COMMIT, "name": "org/new", "endpoint": "http://hub.lab"}]


def cache(machine: Machine, asked: Mapping[str, Any]) -> list[object]:
    """What the program beside a cache prints for a message."""
    stamped = [{"file": {**row, "blob": ""}, "stamp": f"1:{at}:3:4:5"} for at, row in enumerate(_ROWS)]
    match asked.get("do"):
        case "look":
            return [{"end": True, **_held(machine, asked)}]
        case "verify" | "manifest":
            return [{"bytes": 1, "total": 9}, *({"file": row} for row in _ROWS), {"end": True, **_MANIFEST}]
        case "list":
            return [*stamped, {"end": True}]
        case "hash":
            return [*({"file": row, "stamp": "1:2:3:4:5"} for row in _ROWS), {"end": True}]
        case "seek":
            return [{"marked": asked["mark"]}]
    return [{"seen": []}] if "others" in asked else [{"end": True}]


def _held(machine: Machine, asked: Mapping[str, Any]) -> dict[str, Any]:
    whole = asked["folder"] in machine.models
    found = {"commit": COMMIT, "digest": _MANIFEST["digest"]} if whole else {"commit": "", "digest": ""}
    size = _BYTES if whole else 0
    return {**found, "whole": len(FILES) * whole, "bytes": size, "free": 10**13, "writable": True, "named": True}


def bring(world: World, machine: Machine, box: Box) -> None:
    """The program of a pull: it has brought all, where it has a plan."""
    plan = json.loads(machine.read(box, PLAN) or b"{}")
    if plan:
        machine.models[plan["folder"]] = _BYTES
        row = {"v": 1, "phase": "done", "bytes": _BYTES, "total": _BYTES, "at": time.time()}
        row |= {key: plan[key] for key in ("id", "model", "commit", "reference")}
        row |= {"upstream": "", "error": "", "source": plan["me"] == plan["hosts"][0]["name"], "unfed": False}
        box.files[STATUS.strip("/")] = json.dumps({**row, "digest": _MANIFEST["digest"]}).encode()
    box.state = "exited"
