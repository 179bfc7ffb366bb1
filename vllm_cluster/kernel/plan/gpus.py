"""Which GPUs of a host a node gets, and by which way Docker hands them out: as its daemon reports, not files on it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING

from vllm_cluster.kernel.facts.host_facts import DockerFacts, Gpu, GpuProcess, HostFacts
from vllm_cluster.kernel.plan.identity import node_of
from vllm_cluster.kernel.plan.spec import CLUSTER, GpuRequest, Way, stored_spec
from vllm_cluster.kernel.text import number_of

if TYPE_CHECKING:
    from vllm_cluster.kernel.inventory.model import Host

# The kinds of `nvidia-smi topo -m` but NVLink, the slowest first: over the link between processors, between PCIe host
# bridges of one, over one such bridge, over several switches, over one.
KINDS = ("SYS", "NODE", "PHB", "PXB", "PIX")
NVLINK = "NV"
# So many sets are all compared, in a few milliseconds; of more, those that grow from each GPU.
MAX_SETS = 2000
# Of more GPUs, the first ones: 32 take 3 s, and 64 eight times as long.
MAX_COMPARED = 32
# GPUs of one model differ by some MiB.
MIB_PER_GIB = 1024
Indices = tuple[int, ...]


@lru_cache(maxsize=1024)
def choose_gpus(gpus: tuple[Gpu, ...], number: int, busy: frozenset[int] = frozenset()) -> tuple[Gpu, ...]:
    """The GPUs to take together: free, sound and alike, joined by NVLink, near each other; the rest stay joined.

    `busy` are the indices of those in use.
    """
    if len(gpus) > MAX_COMPARED:
        return tuple(sorted(gpus, key=lambda gpu: _avoided(gpu, busy))[:number])
    pairs = _Pairs(gpus, busy)
    every = range(len(gpus))
    sets = combinations(every, number) if comb(len(gpus), number) <= MAX_SETS else _grown(pairs, number)
    return tuple(gpus[n] for n in min(sets, key=pairs.cost))


def _grown(pairs: _Pairs, number: int) -> Iterator[Indices]:
    every = range(len(pairs.gpus))
    for first in every:
        found: Indices = (first,)
        while len(found) < number:
            wider = [tuple(sorted((*found, n))) for n in every if n not in found]
            found = min(wider, key=pairs.cost)
        yield found


class _Pairs:
    """How each two GPUs of a host are joined."""

    def __init__(self, gpus: Sequence[Gpu], busy: Collection[int]) -> None:
        self.gpus = gpus
        self._avoided = {n for n, gpu in enumerate(gpus) if _avoided(gpu, busy)}
        pairs = list(combinations(range(len(gpus)), 2))
        self._kind: Mapping[Indices, str] = {(a, b): _kind(gpus[a], gpus[b]) for a, b in pairs}
        self._sides = {(a, b): gpus[a].numa != gpus[b].numa for a, b in pairs}

    def cost(self, chosen: Indices) -> tuple[object, ...]:
        """What to avoid, the worst first.

        Busy or broken ones, several models, little memory, slow pairs, few NVLinks, two sides, breaking up the rest.
        """
        kinds = [self._kind[pair] for pair in combinations(chosen, 2)]
        rest = [n for n in range(len(self.gpus)) if n not in chosen and n not in self._avoided]
        cut = [(min(a, b), max(a, b)) for a in chosen for b in rest]
        return (
            len(self._avoided.intersection(chosen)),
            len({self.gpus[n].name for n in chosen}),
            -min(self.gpus[n].memory_mib for n in chosen) // MIB_PER_GIB,
            *(kinds.count(kind) for kind in KINDS),
            -sum(map(_links, kinds)),
            sum(self._sides[pair] for pair in combinations(chosen, 2)),
            sum(_links(self._kind[pair]) for pair in cut),
            sum(not self._sides[pair] for pair in cut),
            chosen,
        )


def _avoided(gpu: Gpu, busy: Collection[int]) -> bool:
    """Whether others are better: of one with MIG a process sees a slice; memory with errors gives wrong tokens."""
    return gpu.index in busy or bool(gpu.mig or gpu.ecc_errors)


def _kind(one: Gpu, other: Gpu) -> str:
    """How two GPUs are joined; by their NUMA nodes where the driver did not print it."""
    if other.index < len(one.topology):
        return one.topology[other.index]
    return "NODE" if one.numa == other.numa else "SYS"


def _links(kind: str) -> int:
    number = kind.removeprefix(NVLINK)
    return (number_of(number) or 0) if kind != number else 0


KIND = "nvidia.com/gpu"
RUNTIME = "nvidia"
# Since this version CDI is on unless it is switched off, and containers with CDI devices are started with the engine.
CDI_MATURE = (28, 2)
# vLLM takes 92 % of a GPU's memory unless a flag sets another share; what others hold must fit into the rest.
OTHERS_SHARE = 0.08


def chosen(host: Host, facts: HostFacts) -> tuple[Gpu, ...]:
    """The GPUs that the inventory names; of a number, free ones first, that are joined and near each other."""
    if isinstance(host.gpus, tuple):
        return tuple(gpu for gpu in facts.gpus if gpu.index in host.gpus or gpu.uuid in host.gpus)
    if host.gpus is None or host.gpus >= len(facts.gpus):
        return facts.gpus
    return choose_gpus(facts.gpus, host.gpus, frozenset(gpu.index for gpu in facts.gpus if busy(gpu)))


def busy(gpu: Gpu) -> bool:
    """Whether other processes hold more of its memory than vLLM leaves; unknown for unified memory."""
    return not gpu.unified and 0 < gpu.memory_mib * OTHERS_SHARE < gpu.used_mib


def of_node(cluster: str, host: Host, facts: HostFacts) -> tuple[Gpu, ...]:
    """The GPUs of the node that runs; of a host without one, those that it would get."""
    node = node_of(cluster, facts)
    spec = stored_spec(node.labels) if node and node.state == "running" else None
    if spec is None or spec.gpus is None:
        return chosen(host, facts)
    names = {name.removeprefix(f"{KIND}=") for name in spec.gpus.ids}
    return tuple(gpu for gpu in facts.gpus if "all" in names or names & {str(gpu.index), gpu.uuid})


@dataclass(frozen=True)
class HeldMemory:
    """What others than a cluster hold of a GPU's memory; no processes where nvidia-smi names none."""

    gpu: Gpu
    mib: int
    processes: tuple[GpuProcess, ...] = ()

    @property
    def free_mib(self) -> int:
        """What is left to the cluster."""
        return max(0, self.gpu.memory_mib - self.mib)

    @property
    def share(self) -> float:
        """The largest --gpu-memory-utilization with which vLLM starts beside them, a hundredth below what is free."""
        return max(0, self.free_mib * 100 // max(1, self.gpu.memory_mib) - 1) / 100


def held_by_others(cluster: str, host: Host, facts: HostFacts) -> tuple[HeldMemory, ...]:
    """The GPUs of the host's node, made or not, on which others compute, or whose memory others hold."""
    return tuple(_held(cluster, host, facts))


def _held(cluster: str, host: Host, facts: HostFacts) -> Iterator[HeldMemory]:
    own = {container.id for container in facts.containers if container.labels.get(CLUSTER) == cluster}
    node = node_of(cluster, facts)
    runs = node is not None and node.state == "running"
    for gpu in of_node(cluster, host, facts):
        # Beside a node that runs, a process whose cgroup cannot be read may be the node's.
        left_out = {*own, None} if runs else own
        others = tuple(one for one in gpu.processes if one.container not in left_out)
        if runs and others:
            yield HeldMemory(gpu, sum(one.used_mib for one in others), others)
        elif not runs and (others or busy(gpu)):
            yield HeldMemory(gpu, gpu.used_mib, others)


def request(host: Host, facts: HostFacts) -> GpuRequest:
    """What a node's container asks of Docker."""
    way: Way = next(iter(ways(facts.docker)), "request")
    gpus = chosen(host, facts)
    if way == "cdi":
        wanted = ["all"] if gpus == facts.gpus else [str(gpu.index) for gpu in gpus]
        return GpuRequest(tuple(f"{KIND}={name}" for name in wanted), way)
    return GpuRequest(tuple(str(gpu.index) for gpu in gpus), way)


def ways(docker: DockerFacts) -> tuple[Way, ...]:
    """The ways that work on this engine, the best first; one that an engine's restart breaks comes last."""
    return tuple(_ways(docker))


def _ways(docker: DockerFacts) -> Iterator[Way]:
    by_cdi = cdi_on(docker) and KIND in {*docker.cdi_specs, *(name.partition("=")[0] for name in docker.cdi_devices)}
    if by_cdi and survives_restart(docker):
        yield "cdi"
    # An engine that lists no runtime at all was not asked: what most have is assumed, and the container shows it.
    if docker.gpu_hook or not docker.container_runtimes:
        yield "request"
    if RUNTIME in docker.container_runtimes:
        yield "runtime"
    if by_cdi and not survives_restart(docker):
        yield "cdi"


def cdi_on(docker: DockerFacts) -> bool:
    """Whether the engine reads CDI files."""
    return _release(docker) >= CDI_MATURE if docker.cdi_enabled is None else docker.cdi_enabled


def survives_restart(docker: DockerFacts) -> bool:
    """Whether the engine, when it starts, starts containers with CDI devices; before 28.2 they stay down."""
    return _release(docker) >= CDI_MATURE


def _release(docker: DockerFacts) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,9}", docker.version)[:2])
