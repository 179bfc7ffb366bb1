"""Inventories and worlds to begin with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.sim.world import Box, File, Machine, Picture, Volume, World, identity
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.pull import STATUS, container_name
from vllm_cluster.kernel.plan.spec import CLUSTER

IMAGE = "vllm/vllm-openai:v0.33.0"
BARE = {"vllm": "0.33.0"}
MODEL_SIZE = 16_100_000_000
WITH_RAY = {"vllm": "0.33.0", "ray": "2.56.1"}


def inventory(hosts: int = 2, entries: Mapping[str, Mapping[str, Any]] | None = None, **changes: Any) -> Inventory:
    """An inventory of hosts gpu1 …, at 10.0.0.1 …; `entries` adds to single hosts."""
    more = entries or {}
    names = {f"gpu{n}": f"10.0.0.{n}" for n in range(1, hosts + 1)}
    hosts_said = {name: {"address": address, **more.get(name, {})} for name, address in names.items()}
    words = {"version": 1, "cluster": "lab", "image": IMAGE, "model_cache": "/models", "hosts": hosts_said, **changes}
    return Inventory.model_validate(words)


def inventory_of(*numbers: int, **words: Any) -> Inventory:
    """An inventory of some of the hosts, the first of them its head."""
    hosts = {f"gpu{n}": {"address": f"10.0.0.{n}"} for n in numbers}
    base = {"version": 1, "cluster": "lab", "image": IMAGE, "model_cache": "/models", "hosts": hosts}
    return Inventory.model_validate({**base, **words})


def base_image(number: int = 1, *, have: dict[str, str] | None = None) -> Picture:
    """A vLLM image as the registry has it; another number is another build of one tag."""
    content = BARE if have is None else have
    return Picture(f"sha256:{identity('base', number, sorted(content))}", [], dict(content))


def world(gpus: Sequence[int] = (2, 2), *, have: dict[str, str] | None = None, present: bool = True) -> World:
    """Hosts with so many GPUs each; the image is in the registry, and on the hosts where `present`."""
    image = base_image(have=have)
    machines = [
        Machine(f"gpu{n}", f"10.0.0.{n}", count, f"machine-{n}", nic=f"eth{n % 3}") for n, count in enumerate(gpus, 1)
    ]
    made = World(machines, {IMAGE: image})
    for machine in machines if present else ():
        machine.take_image(image).tags.append(IMAGE)
    return made


def neighbours(machine: Machine, cluster: str = "lab") -> None:
    """Objects of other people, with names as near to the cluster's as they can be without taking them."""
    other = Picture(f"sha256:{identity('other', machine.name)}", ["postgres:17"], {})
    machine.images[other.id] = other
    names = [f"vcluster-{cluster}-2", f"vcluster-{cluster}_", f"my-vcluster-{cluster}", f"vcluster-{cluster}2"]
    names += [f"vcluster-{cluster}-probe", f"vcluster-{cluster}-door"]
    for name in names:
        labels = {"com.docker.compose.project": f"vcluster-{cluster}", "io.vcluster": cluster}
        body = {"Image": other.id, "Labels": labels, "Entrypoint": ["postgres"], "Cmd": []}
        made = Box(identity("foreign", machine.name, name), name, other.id, body, state="running", born=-1)
        made.files["data"] = b"precious"
        machine.boxes[made.id] = made
    for name in (f"vcluster-{cluster}-state-old", f"vcluster-{cluster}-data", "pgdata"):
        machine.volumes[name] = Volume(name, {}, {"file": b"precious"})


def part_of_a_pull(world: World, host: str, phase: str) -> None:
    """A host's part of a pull, half of its 16 GB there."""
    machine = world.machines[host]
    name = container_name("lab")
    image = next(iter(machine.images))
    made = Box(identity(host, name), name, image, {"Image": image, "Labels": {CLUSTER: "lab"}}, state="running")
    row = {
        "v": 1,
        "model": "org/new",
        "commit": "c" * 40,
        "phase": phase,
        "bytes": MODEL_SIZE // 2,
        "total": MODEL_SIZE,
    }
    made.files[STATUS.strip("/")] = File(json.dumps(row).encode())
    machine.boxes[made.id] = made
