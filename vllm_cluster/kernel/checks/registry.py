"""All checks in order: those that `up` runs, and those that need details."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from vllm_cluster.kernel.checks import docker, gpus, host, image, members, model_cache, network, rdma
from vllm_cluster.kernel.checks.docker import engine_problem
from vllm_cluster.kernel.checks.finding import Check, Finding
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.desired import hcas

# Cheap, and worth interrupting `up` for.
_ALWAYS: Sequence[Check] = (
    gpus.enough_gpus,
    gpus.state,
    network.addresses,
    network.kinds,
    rdma.named,
    rdma.devices,
    network.ports,
    docker.warn_of_foreign,
    docker.name_taken,
    docker.disk_space,
    docker.gpu_access,
    host.paths,
    host.shared_memory,
    host.machines,
    host.clocks,
    network.mtu,
    image.one,
)
# What needs details, and what a cluster can live with.
_ON_DEMAND: Sequence[Check] = (
    docker.other_containers,
    members.left,
    docker.toolkit,
    docker.cdi_ignored,
    gpus.health,
    gpus.same_gpus,
    gpus.driver,
    network.outgoing_interface,
    network.slow,
    network.meeting_port,
    network.hostname,
    rdma.idle,
    rdma.unused,
    rdma.alike,
    rdma.apart,
    rdma.direct,
    rdma.rules,
    host.hostnames,
    image.processor,
    image.prepared,
    model_cache.cache_filesystem,
    model_cache.incomplete_files,
    model_cache.without_tokenizer,
    model_cache.same_models,
    model_cache.one_device,
)


# What another cluster on a host causes.
_FOLLOWS = ("port-in-use", "gpu-busy", "shm-large")


@dataclass(frozen=True)
class NotChecked:
    """What could not be checked on a host, and why."""

    host: str
    what: str
    reason: str


def preflight(inventory: Inventory, facts: Mapping[str, HostFacts]) -> tuple[Finding, ...]:
    """Everything found, errors first; nothing is touched while there is an error."""
    return _ordered(inventory, (finding for check in _ALWAYS for finding in check(inventory, facts)))


def check_all(inventory: Inventory, facts: Mapping[str, HostFacts]) -> tuple[Finding, ...]:
    """As `preflight`, plus the checks that need details, plus hosts whose Docker cannot be used."""
    engines = (finding for entry in facts.values() if (finding := engine_problem(entry)))
    checks = (finding for check in (*_ALWAYS, *_ON_DEMAND) for finding in check(inventory, facts))
    return _ordered(inventory, (*engines, *checks))


def _ordered(inventory: Inventory, findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Errors first, without what only follows from another cluster on the host: its remedy would stop that cluster.

    Nodes are of this cluster by their head's address: where that is wrong, its own nodes seem to be another's.
    """
    every = list(findings)
    taken = {finding.host for finding in every if finding.code == "other-cluster"}
    kept = [finding for finding in every if finding.host not in taken or finding.code not in _FOLLOWS]
    if any((finding.code, finding.host) == ("address-not-found", inventory.head_name) for finding in every):
        kept = [finding for finding in kept if finding.code != "other-cluster"]
    return tuple(sorted(kept, key=lambda finding: not finding.error))


def unseen(inventory: Inventory, facts: Mapping[str, HostFacts]) -> tuple[NotChecked, ...]:
    """What could not be checked, so that missing facts do not pass for health."""
    return tuple(
        NotChecked(name, what, why) for name, entry in facts.items() for what, why in _unseen(inventory, name, entry)
    )


def _unseen(inventory: Inventory, name: str, facts: HostFacts) -> Iterator[tuple[str, str]]:
    details = facts.details
    if facts.docker.problem:
        yield "containers, ports, images and their disk space", "Docker does not answer"
    if details is None:
        return
    if inventory.accelerator == "nvidia" and facts.gpus:
        if details.xids is None:
            yield "Xid errors", "its kernel log is for root: sudo sysctl kernel.dmesg_restrict=0"
        if not details.gpu_health:
            yield "the GPUs' health", "`nvidia-smi -q -x` gave no complete output within 20 s"
    if hcas(inventory.hosts[name], facts) and details.acs_enabled is None:
        yield "PCI ACS", "lspci is missing, or shows it only to root"
    if details.hostname_addresses is None:
        yield "its hostname's addresses", "getent is missing, or no name server answers"
    if details.image is None and not facts.docker.problem:
        yield "what a container sees, the image's processor and CUDA", f"{inventory.image} is not on the host yet"
    if not facts.memory_bytes:
        yield "its memory", "/proc/meminfo cannot be read"
