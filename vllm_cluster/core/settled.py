"""A node that runs stays as it is where less is found than when it was made: a port that is down for a moment, a lost
GPU, a CDI file that came or went. Only a change of the inventory, or hardware that was added, makes another node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from vllm_cluster.core.identity import node_of
from vllm_cluster.core.spec import ContainerSpec, stored_spec
from vllm_cluster.facts.host_facts import HostFacts

HCAS, GID = "NCCL_IB_HCA", "NCCL_IB_GID_INDEX"
_NUMBER = "--num-gpus="


@dataclass(frozen=True)
class Less:
    """What a host had when its node was made, and has not now."""

    host: str
    text: str


def settled(
    specs: Iterable[ContainerSpec], facts: Mapping[str, HostFacts]
) -> tuple[tuple[ContainerSpec, ...], tuple[Less, ...]]:
    """The specs, with what each running node was made with where less is found now; and what is less."""
    kept, less = [], []
    for wanted in specs:
        node = node_of(wanted.cluster, facts[wanted.host])
        current = stored_spec(node.labels) if node and node.state == "running" else None
        same = current is not None and current.intent == wanted.intent
        spec, texts = _settle(current, wanted) if current and same else (wanted, [])
        kept.append(spec)
        less += [Less(spec.host, text) for text in texts]
    return tuple(kept), tuple(less)


def _settle(current: ContainerSpec, wanted: ContainerSpec) -> tuple[ContainerSpec, list[str]]:
    texts = []
    had, has = _ports(current), _ports(wanted)
    if had > has:
        texts.append(f"{', '.join(sorted(had - has))} was ACTIVE when its node was made, and is not now")
        wanted = _with_adapters(wanted, current)
    if (wanted.gpus is None) == (current.gpus is None) and current.gpu_count >= wanted.gpu_count:
        if current.gpu_count > wanted.gpu_count:
            texts.append(f"{current.gpu_count} GPUs were found when its node was made, {wanted.gpu_count} now")
        number = f"{_NUMBER}{current.gpu_count}"
        command = tuple(number if word.startswith(_NUMBER) else word for word in wanted.command)
        wanted = replace(wanted, gpus=current.gpus, gpu_count=current.gpu_count, command=command)
    return wanted, texts


def _ports(spec: ContainerSpec) -> set[str]:
    return set(filter(None, dict(spec.environment).get(HCAS, "").removeprefix("=").split(",")))


def _with_adapters(wanted: ContainerSpec, current: ContainerSpec) -> ContainerSpec:
    """With the adapters, and all that a container needs for them, of the node as it is."""
    theirs = {key: value for key, value in current.environment if key in (HCAS, GID)}
    rest = {key: value for key, value in wanted.environment if key not in (HCAS, GID)}
    return replace(
        wanted,
        environment=tuple(sorted({**rest, **theirs}.items())),
        devices=current.devices,
        capabilities=current.capabilities,
        unlimited_memlock=current.unlimited_memlock,
    )
