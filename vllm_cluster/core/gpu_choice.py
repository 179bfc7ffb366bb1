"""Which of a host's GPUs are best together: a TP group waits for its slowest pair at every layer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb

from vllm_cluster.facts.host_facts import Gpu
from vllm_cluster.text import plural

# The kinds of `nvidia-smi topo -m` but NVLink, the slowest first: over the link between processors, between PCIe host
# bridges of one, over one such bridge, over several switches, over one.
KINDS = ("SYS", "NODE", "PHB", "PXB", "PIX")
_WORDS = {
    "SYS": "no path but between processors",
    "NODE": "no path but between PCIe host bridges of one processor",
    "PHB": "joined by one PCIe host bridge",
    "PXB": "joined by PCIe switches",
    "PIX": "joined by one PCIe switch",
}
NVLINK = "NV"
# So many sets are all compared, in a few milliseconds; of more, those that grow from each GPU.
MAX_SETS = 2000
# GPUs of one model differ by some MiB.
MIB_PER_GIB = 1024
Indices = tuple[int, ...]


@dataclass(frozen=True)
class GpuChoice:
    """Some of a host's GPUs, by index, and why these."""

    gpus: tuple[Gpu, ...]
    reason: str


@lru_cache(maxsize=1024)
def choose(gpus: tuple[Gpu, ...], number: int, busy: frozenset[int] = frozenset()) -> GpuChoice:
    """The GPUs to take together: free, sound and alike, joined by NVLink, near each other; the rest stay joined.

    `busy` are the indices of those in use.
    """
    pairs = _Pairs(gpus, busy)
    every = range(len(gpus))
    sets = combinations(every, number) if comb(len(gpus), number) <= MAX_SETS else _grown(pairs, number)
    best = min(sets, key=pairs.cost)
    return GpuChoice(tuple(gpus[n] for n in best), pairs.reason(best))


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
        self._busy = {n for n, gpu in enumerate(gpus) if gpu.index in busy}
        # Of a GPU with MIG a process sees a slice; memory with errors ends a start, or gives wrong tokens.
        self._avoided = self._busy | {n for n, gpu in enumerate(gpus) if gpu.mig or gpu.ecc_errors}
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

    def reason(self, chosen: Indices) -> str:
        """Why these, for people."""
        kinds = [self._kind[pair] for pair in combinations(chosen, 2)]
        linked = sorted({kind for kind in kinds if kind.startswith(NVLINK)}, key=_links)
        slow = [kind for kind in KINDS if kind in kinds]
        words = []
        if len({gpu.name for gpu in self.gpus}) > 1:
            words.append(" and ".join(sorted({self.gpus[n].name for n in chosen})))
        if linked:
            some = "" if not slow else f" in {sum(map(bool, map(_links, kinds)))} of {len(kinds)} pairs"
            words.append(f"joined by NVLink ({', '.join(linked)}){some}")
        if slow:
            words.append(_WORDS[slow[0]])
        sides = [self.gpus[n].numa for n in chosen]
        known = sorted({side for side in sides if side is not None})
        if None not in sides:
            words.append(f"NUMA {plural(len(known), 'node')} {', '.join(map(str, known))}")
        if taken := [str(self.gpus[n].index) for n in chosen if n in self._busy]:
            words.append(f"{', '.join(taken)} in use by others")
        return ", ".join(words) or "the first free one"


def _kind(one: Gpu, other: Gpu) -> str:
    """How two GPUs are joined; by their NUMA nodes where the driver did not print it."""
    if other.index < len(one.topology):
        return one.topology[other.index]
    return "NODE" if one.numa == other.numa else "SYS"


def _links(kind: str) -> int:
    number = kind.removeprefix(NVLINK)
    return int(number) if kind != number and number.isdecimal() else 0
