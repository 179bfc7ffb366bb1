"""Hosts and inventories for tests, with one word changed at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vllm_cluster.kernel.facts.docker_objects import Container, Image
from vllm_cluster.kernel.facts.host_facts import DockerFacts, Gpu, HostFacts, Nic
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.desired import Inputs, desired
from vllm_cluster.kernel.plan.images import node_image_name
from vllm_cluster.kernel.plan.spec import BASE_IMAGE, ContainerSpec

IMAGE = "vllm/vllm-openai:v0.33.0"
BASE = Image("sha256:" + "ab" * 32, (IMAGE,), (), {})
ENGINE = Image("sha256:" + "cd" * 32, (node_image_name(BASE.id, ("ray==2.56.1",)),), (), {})
INPUTS = Inputs(program="aa", secrets={"ray-token": "11", "api-key": "22"})


def inventory(hosts: int = 2, **changes: Any) -> Inventory:
    """An inventory of hosts gpu1 …, at 10.0.0.1 …"""
    entries: dict[str, Any] = {f"gpu{n}": {"address": f"10.0.0.{n}"} for n in range(1, hosts + 1)}
    for name, entry in changes.pop("entries", {}).items():
        entries[name] |= entry
    words = {"version": 1, "cluster": "lab", "image": IMAGE, "model_cache": "/models", "hosts": entries, **changes}
    return Inventory.model_validate(words)


def host(n: int, **changes: Any) -> HostFacts:
    """A host with two GPUs and the image, on which nothing runs."""
    facts = HostFacts(
        host=f"gpu{n}",
        machine_id=f"machine-{n}",
        hostname=f"node{n}",
        clock=1_700_000_000.0,
        observed_at=1_700_000_000.0,
        nics=(Nic("lo", ("127.0.0.1/8",), 65536, "UNKNOWN"), Nic("eth1", (f"10.0.0.{n}/24",), 1500, "UP")),
        hcas=(),
        gpus=tuple(Gpu(i, f"GPU-{n}-{i}", "NVIDIA H200", 143_771) for i in range(2)),
        logical_gpus=None,
        memory_bytes=1 << 40,
        listening=frozenset(),
        routes={f"10.0.0.{m}": "lo" if m == n else "eth1" for m in range(1, 9)},
        missing_paths=frozenset(),
        free_bytes={"/": 1 << 40},
        docker=DockerFacts(version="28.0.0", api_version="1.48", architecture="amd64", data_root="/var/lib/docker"),
        images=(BASE, ENGINE),
    )
    return replace(facts, **changes)


def hosts(count: int = 2, **changes: Any) -> dict[str, HostFacts]:
    """The facts of several hosts; `gpu2=dict(…)` changes one of them."""
    return {f"gpu{n}": host(n, **changes.get(f"gpu{n}", {})) for n in range(1, count + 1)}


def running(spec: ContainerSpec, **changes: Any) -> Container:
    """The container that a spec becomes."""
    labels = {**spec.labels(), BASE_IMAGE: BASE.id, **changes.pop("labels", {})}
    return replace(Container(f"id-of-{spec.host}", spec.name, "running", ENGINE.id, labels), **changes)


def converged(words: Inventory, count: int = 2) -> tuple[tuple[ContainerSpec, ...], dict[str, HostFacts]]:
    """The specs of an inventory, and hosts that are as they ask for."""
    facts = hosts(count)
    specs = desired(words, facts, INPUTS)
    return specs, {spec.host: replace(facts[spec.host], containers=(running(spec),)) for spec in specs}
