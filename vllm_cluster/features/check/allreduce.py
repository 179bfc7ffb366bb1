"""The results of all-reduce trials, and the host or link at fault."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated

from vllm_cluster.kernel.backends.nccl import NcclTransport
from vllm_cluster.kernel.checks.finding import Finding
from vllm_cluster.kernel.text import plural
from vllm_cluster.wire.values import Count, Port, between, brief

_FIRST = ("started", "store", "joined")
_DONE = 1 << 10
# NCCL over a link reaches 80 to 95 % of it where all is well.
MIN_BANDWIDTH_SHARE = 0.5
_MAX_LOG, _MAX_LOG_LINE = 400, 4096
_TRY = 'environment: {NCCL_P2P_DISABLE: "1"}, then {NCCL_NVLS_ENABLE: "0"}, then {NCCL_IB_DISABLE: "1"}'


@dataclass(frozen=True)
class AllReduceTime:
    """One size: the time of an all-reduce on the slowest rank, and the bus bandwidth that follows, in GB/s."""

    bytes: int
    seconds: float
    bus_gb_per_s: float


@dataclass(frozen=True)
class RankMessage:
    """What the program of the ranks on a host sends of one rank of a trial; of a host that is ready neither."""

    trial: Count = 0
    rank: Count | None = None
    step: str = ""
    bytes: Count = 0
    seconds: Annotated[float, between(0.0, 1e9)] | None = None
    right: bool = False
    log: Annotated[str, brief(_MAX_LOG_LINE)] | None = None
    code: Annotated[int, between(-(1 << 31), 1 << 31)] = 0
    error: str = ""
    port: Port | None = None


@dataclass
class Trial:
    """One all-reduce among some hosts; `ranks` maps each rank to its host."""

    ranks: Mapping[int, str]
    sizes: Sequence[int]
    steps: dict[int, int] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    wrong: dict[int, int] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    log: dict[str, None] = field(default_factory=dict)
    # Ranks that exited without an error: the errors of other ranks are mostly caused by these.
    died: list[int] = field(default_factory=list)
    # The rest was stopped by us; `given_up` where nothing had failed, and they hung.
    stopped: bool = False
    given_up: bool = False

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that take part, in the order of their ranks."""
        return tuple(dict.fromkeys(self.ranks.values()))

    def update(self, rank: int, row: RankMessage) -> bool:
        """Apply a rank's message; return whether the rank advanced."""
        step, size = row.step, row.bytes
        if rank not in self.ranks:
            return False
        if row.log is not None and len(self.log) < _MAX_LOG:
            self.log[row.log] = None
        if step == "ended":
            self.ended.add(rank)
            if row.code and not self.stopped and rank not in self.errors:
                self.errors[rank] = f"it died (exit code {row.code})"
                self.died.append(rank)
        elif step == "failed":
            self.errors.setdefault(rank, row.error[:600])
        elif step == "done":
            return self._reach(rank, _DONE)
        elif step in _FIRST:
            return self._reach(rank, _FIRST.index(step) + 1)
        elif step == "size" and size in self.sizes and row.seconds is not None:
            self.seconds[size] = max(row.seconds, 1e-9)
            if not row.right:
                self.wrong.setdefault(rank, size)
            return self._reach(rank, self.sizes.index(size) + 4)
        return False

    def _reach(self, rank: int, step: int) -> bool:
        further = step > self.steps.get(rank, 0)
        self.steps[rank] = max(step, self.steps.get(rank, 0))
        return further

    @property
    def over(self) -> bool:
        """Whether no rank runs any more."""
        return self.ended >= self.ranks.keys()

    @property
    def ok(self) -> bool:
        """Whether every rank came to its end with the right sums."""
        return not self.errors and not self.wrong and all(self.steps.get(rank) == _DONE for rank in self.ranks)

    def rows(self) -> tuple[AllReduceTime, ...]:
        """The figures, by size."""
        share = 2 * (len(self.ranks) - 1) / len(self.ranks)
        return tuple(
            AllReduceTime(size, took, share * size / took / 1e9) for size, took in sorted(self.seconds.items())
        )

    def why(self) -> str:
        """What went wrong, in a few words."""
        if self.wrong:
            rank, size = min(self.wrong.items())
            return f"the sum of {binary(size)} is wrong on {self._named([rank])}"
        last = min((self.steps.get(rank, 0) for rank in self.ranks), default=0)
        behind = [rank for rank in self.ranks if self.steps.get(rank, 0) == last]
        if failed := [*self.died, *(rank for rank in self.errors if rank in behind), *self.errors]:
            return f"{self._named(failed[:1])} failed: {_short(self.errors[failed[0]])}"
        who = "no rank" if len(behind) == len(self.ranks) else f"{self._named(behind)} never"
        return f"{who} {self._next(last)}"

    def _next(self, step: int) -> str:
        if step >= len(self.sizes) + len(_FIRST):
            return "came to the end"
        first = ("started", f"reached the rendezvous on {self.hosts[0]}", "joined the group")
        return (*first, *(f"got through {binary(size)}" for size in self.sizes))[step]

    def _named(self, ranks: Sequence[int]) -> str:
        hosts = ", ".join(dict.fromkeys(self.ranks[rank] for rank in ranks))
        return f"{plural(len(ranks), 'rank')} {', '.join(map(str, ranks))} ({hosts})"


def binary(size: int) -> str:
    """Bytes in binary units: 64 KiB."""
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def _short(error: str) -> str:
    return re.sub(r"\s+", " ", error)[:300]


Pair = tuple[str, str]
Pairs = Mapping[Pair, Trial]


def ring(hosts: Sequence[str]) -> list[list[Pair]]:
    """Each host with the next, around all of them, in rounds in which no host is in two pairs.

    NCCL's rings and Gloo's join neighbours, so what they fail on is one of these links, or a host.
    """
    pairs = list(zip(hosts, [*hosts[1:], *hosts[:1]], strict=True))
    # Two hosts have one link; of an odd number the last pair shares a host with both rounds.
    last = [pairs.pop()] if len(hosts) % 2 or len(hosts) == 2 else []
    return [one for one in (pairs[::2], pairs[1::2], last if len(hosts) > 2 else []) if one]


def locate_fault(whole: Trial, alone: Mapping[str, Trial], pairs: Pairs) -> list[Finding]:
    """The hosts or links that make all ranks together fail, or none of them."""
    guilty = [host for host, trial in alone.items() if not trial.ok]
    found = [_host(host, f"all-reduce among its own ranks fails: {alone[host].why()}") for host in guilty]
    failed = {pair: trial for pair, trial in pairs.items() if not trial.ok and not set(pair) & set(guilty)}
    for host in dict.fromkeys(name for pair in failed for name in pair):
        tried = [pair for pair in pairs if host in pair and not set(pair) & set(guilty)]
        others = [pair for pair in pairs if host not in pair]
        if len(tried) > 1 and all(pair in failed for pair in tried) and any(pairs[pair].ok for pair in others):
            found.append(_host(host, f"all-reduce fails with each of {len(tried)} hosts: {failed[tried[0]].why()}"))
            guilty.append(host)
    for (one, other), trial in failed.items():
        if not {one, other} & set(guilty):
            fix = f"vcluster check tests ports and MTU\nthen check the network between {one} and {other}"
            alike = "; each alone works" if {one, other} <= alone.keys() else ""
            found.append(Finding("allreduce-link", other, f"{one} ↔ {other}: {trial.why()}{alike}", fix))
    if not found:
        counts = ((len(alone), "alone"), (len(pairs), "in pairs"))
        work = [f"{count} tried {how}" for count, how in counts if count]
        text = f"all ranks together fail: {whole.why()}; {' and '.join(work)} work" if work else whole.why()
        host = whole.ranks[whole.died[0]] if whole.died else whole.hosts[0]
        found.append(Finding("allreduce-together", host, text, f"try again; then, in the inventory, {_TRY}"))
    return found


def _host(host: str, text: str) -> Finding:
    fix = f"take {host} out of the inventory, or try there: {_TRY}; ACS off, one driver on all hosts"
    return Finding("allreduce-host", host, text, fix)


def slow(rows: Sequence[AllReduceTime], expected: float | None) -> bool:
    """Whether the largest size moved at less than half of what the link should give, in GB/s."""
    return bool(rows and expected and max(row.bus_gb_per_s for row in rows) < MIN_BANDWIDTH_SHARE * expected)


def slow_pair(pairs: Pairs) -> Pair | None:
    """The slowest pair, where it is much slower than pairs usually are."""
    speed = _speeds(pairs)
    slowest = min(speed, key=lambda pair: speed[pair], default=None)
    return slowest if slowest and speed[slowest] < MIN_BANDWIDTH_SHARE * median(speed.values()) else None


def _speeds(pairs: Pairs) -> dict[Pair, float]:
    return {pair: max(row.bus_gb_per_s for row in trial.rows()) for pair, trial in pairs.items() if trial.rows()}


def slow_link_finding(whole: Trial, expected: float, pairs: Pairs) -> Finding:
    """A finding that names the slow link, where pairs were tried and one is much slower."""
    best, slowest = max(row.bus_gb_per_s for row in whole.rows()), slow_pair(pairs)
    text = f"all-reduce reaches {best:.2f} GB/s, the link between the hosts should reach {expected:.1f}"
    host = whole.hosts[0]
    if slowest:
        speed = _speeds(pairs)
        text += f"; {slowest[0]} ↔ {slowest[1]} {speed[slowest]:.2f}, pairs usually {median(speed.values()):.2f}"
        host = slowest[1]
    fix = "check the transport that NCCL chose, the interface's speed (ethtool) and ACTIVE HCAs (ibstat)"
    return Finding("allreduce-slow", host, text, fix, severity="warning")


def transport_findings(head: str, chosen: NcclTransport, active: Mapping[str, Sequence[str]]) -> list[Finding]:
    """Problems of the transport that NCCL chose; `active` are the HCAs that each host could use."""
    found = []
    if chosen.socket and all(active.values()) and active:
        devices = ", ".join(next(iter(active.values())))
        text = f"NCCL uses TCP (NET/Socket) although HCAs are ACTIVE ({devices})"
        fix = 'environment: {NCCL_NET: "IB"} makes it fail with the reason\nor name them, with hcas of each host'
        found.append(Finding("allreduce-socket", head, text, fix, severity="warning"))
    if chosen.indirect:
        text = f"GPU Direct RDMA is disabled for {', '.join(chosen.indirect)}: bytes go through the host's memory"
        fix = "on every host: sudo modprobe nvidia_peermem; else turn ACS off, iommu=pt on the kernel's command line"
        found.append(Finding("allreduce-gdr", head, text, fix, severity="warning"))
    return found
