"""Two replicas, or two models, on two nodes whose programs are real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.node.world import HEAD, WORKER, World, eventually
from tests.support.ports import free_port

PACE = {"roll_beat": 0.1, "roll_silent": 0.8, "roll_lost": 1.5, "part_start": 20.0, "drain": 2.0}
BAD = {"lines": ["OSError: no/such is not a local folder\n"], "exit": 1}


class Two:
    """Two replicas of a model, one on each of two nodes."""

    def __init__(self, world: World) -> None:
        self.world, self.api = world, free_port()
        world.pace |= PACE
        world.fake2.mkdir()
        (world.fake2 / "stray").write_bytes((world.fake / "stray").read_bytes())
        self.plans(world.fake2, {})

    def plans(self, fake: Path, *plans: dict[str, Any]) -> None:
        """What vLLM does on a node, run after run."""
        (fake / "plans.json").write_text(json.dumps(plans))

    def row(self, index: int, generation: str, number: int = 2) -> dict[str, Any]:
        """One replica as a laptop writes it."""
        at = {"address": HEAD, "host": "gpu1"} if index == 0 else {"address": WORKER, "host": "gpu2"}
        found = self.world.placed(generation, backend="mp", ranks={HEAD: 2}, replicas=number)
        found["replica"] |= {"parts": [{**found["replica"]["parts"][0], **at}]} | ({"api": self.api} if index else {})
        return {**found, "index": index}

    def want(self, generation: str, number: int = 2) -> None:
        """Ask for so many replicas."""
        rows = [self.row(index, f"{generation}-{index}", number) for index in range(number)]
        text = json.dumps({"v": 4, "deployments": rows})
        self.world._write(self.world.state / "wanted.json", text)

    def ready(self, generation: str) -> None:
        """Wait until both are."""
        names = [f"{generation}-0", f"{generation}-1"]
        eventually(lambda: [(one.generation, one.phase) for one in self.rows] == [(n, "ready") for n in names], "both")

    @property
    def rows(self) -> tuple[Any, ...]:
        """What is reported of each."""
        return tuple(self.world.status.replicas) if self.world.status else ()

    @property
    def pids(self) -> tuple[int, int]:
        """The processes of the last start of each."""
        return self.world.attempts[-1]["pid"], self.world.followers[-1]["pid"]
