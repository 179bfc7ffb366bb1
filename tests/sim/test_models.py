"""`vcluster models` shows what is being pulled, on hosts that nothing else has looked at."""

from __future__ import annotations

import json
from typing import Any

from tests.support.sim import lab, make
from tests.support.sim.world import Box, File, World, identity
from vllm_cluster.actions.assess import reached
from vllm_cluster.actions.models import RunningPull, running_pulls
from vllm_cluster.core.pull import STATUS, container_name
from vllm_cluster.core.spec import CLUSTER
from vllm_cluster.events import Emit
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.runtime import Runtime

SIZE = 16_100_000_000


def pulling(world: World, host: str, phase: str) -> None:
    """A host's part of a pull."""
    machine = world.machines[host]
    name = container_name("lab")
    image = next(iter(machine.images))
    made = Box(identity(host, name), name, image, {"Image": image, "Labels": {CLUSTER: "lab"}}, state="running")
    row = {"v": 1, "model": "org/new", "commit": "c" * 40, "phase": phase, "bytes": SIZE // 2, "total": SIZE}
    made.files[STATUS.strip("/")] = File(json.dumps(row).encode())
    machine.boxes[made.id] = made


def test_only_a_pull_that_runs_is_shown_and_a_broken_docker_stops_nothing() -> None:
    world = make.world((2, 2, 2, 2))
    for host, phase in {"gpu1": "downloading", "gpu2": "receiving", "gpu3": "done", "gpu4": "receiving"}.items():
        pulling(world, host, phase)
    world.machines["gpu4"].docker = "stopped"

    def verb(inventory: Inventory, emit: Emit, runtime: Runtime) -> Any:
        with reached(inventory, emit, runtime=runtime) as (fleet, _):
            return running_pulls(inventory, fleet, fleet.names)

    with lab.inside(world):
        outcome = lab.run(world, make.inventory(4), verb)
    assert outcome.error is None, outcome.story()
    assert outcome.value == {
        "gpu1": RunningPull("org/new", "c" * 40, "downloading", SIZE // 2, SIZE),
        "gpu2": RunningPull("org/new", "c" * 40, "receiving", SIZE // 2, SIZE),
    }
