"""Drives the ranks on all hosts: trials among groups of them, side by side, none without an end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from vllm_cluster.features.check.allreduce import RankMessage, Trial, binary
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import HostError, VclusterError
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.hosts.program import RunningProgram
from vllm_cluster.kernel.hosts.runtime import Runtime
from vllm_cluster.kernel.plan.spec import ContainerSpec
from vllm_cluster.kernel.text import host_port
from vllm_cluster.wire.reading import RefusedDocument, convert

# After the first rank has failed the others get this long to report what they saw.
PEER_ERROR_SECONDS = 2.0
# A killed rank is reported, with its log, unless its host is gone.
END_SECONDS = 4.0
TICK = 0.1
# Messages of all hosts that wait to be taken: those of eight hosts that send `{}` without end took 122 MB.
MAX_WAITING = 1000
MAX_SILENCE_SECONDS = 600.0


@dataclass(frozen=True)
class TrialLimits:
    """Seconds for a trial as a whole, for no rank coming a step further, and for the measuring in it."""

    whole: float
    still: float
    measuring: float


@dataclass
class _RunningTrial:
    number: int
    trial: Trial
    end: float
    moved: float
    master: str = ""
    stopped: float | None = None
    failed: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class RankDriver:
    """The programs on the hosts, each ready to fork ranks."""

    accelerator: str
    specs: Mapping[str, ContainerSpec]
    lines: Mapping[str, RunningProgram]
    emit: Emit
    runtime: Runtime
    _messages: queue.Queue[tuple[str, RankMessage | VclusterError]] = field(
        default_factory=lambda: queue.Queue(MAX_WAITING)
    )
    _count: int = 0
    _gone: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for lines in self.lines.values():
            threading.Thread(target=self._listen, args=(lines,), name=f"ranks {lines.host}", daemon=True).start()

    def _listen(self, lines: RunningProgram) -> None:
        try:
            while True:
                row = lines.next(self.runtime.after(MAX_SILENCE_SECONDS))
                self._messages.put((lines.host, convert(RankMessage, row, "a message")))
        except RefusedDocument as error:
            self._messages.put((lines.host, HostError(lines.host, f"all-reduce: unreadable output: {error}", again=())))
        except VclusterError as error:
            self._messages.put((lines.host, error))

    def run(
        self,
        groups: Sequence[Sequence[str]],
        sizes: Sequence[int],
        limits: TrialLimits,
        deadline: Deadline,
        environment: Mapping[str, str] | None = None,
    ) -> list[Trial]:
        """An all-reduce in each group of hosts, side by side; each comes to an end of its own, good or bad."""
        running: dict[int, _RunningTrial] = {}
        now = self.runtime.clock.monotonic()
        for hosts in groups:
            self._count += 1
            ranks = [host for host in hosts for _ in range(self.specs[host].gpu_count)]
            trial = Trial(dict(enumerate(ranks)), tuple(sizes))
            end = now + min(limits.whole, deadline.left())
            running[self._count] = _RunningTrial(self._count, trial, end, now, environment=environment or {})
            self._order(running[self._count], limits, [0])
        while not all(self._over(each, limits) for each in running.values()):
            self._take(running, limits)
        return [each.trial for each in running.values()]

    def _order(self, each: _RunningTrial, limits: TrialLimits, ranks: Sequence[int]) -> None:
        """Have ranks start; the first of all makes the rendezvous, on a port that its kernel chooses."""
        trial = each.trial
        rest = {
            "world": len(trial.ranks),
            "device": "cuda" if self.accelerator == "nvidia" else "cpu",
            "sizes": list(trial.sizes),
            "seconds": limits.measuring,
            "environment": dict(each.environment),
            "master": each.master or host_port(self.specs[trial.hosts[0]].address, 0),
        }
        for host in trial.hosts:
            first = list(trial.ranks.values()).index(host)
            mine = {str(rank): rank - first for rank in ranks if trial.ranks[rank] == host}
            if mine:
                self._send(host, {"trial": each.number, "ranks": mine, **rest})

    def _send(self, host: str, row: Mapping[str, object]) -> None:
        try:
            self.lines[host].send(row)
        except VclusterError as error:
            self._gone.setdefault(host, error.message)

    def _take(self, running: Mapping[int, _RunningTrial], limits: TrialLimits) -> None:
        """Read what the next host sends, if any sends something in a moment."""
        try:
            host, row = self._messages.get(timeout=TICK)
        except queue.Empty:
            return
        if isinstance(row, VclusterError):
            self._gone.setdefault(host, row.message)
            return
        each, rank = running.get(row.trial), row.rank
        if each is None or rank is None or each.trial.ranks.get(rank) != host:
            return
        if each.trial.update(rank, row):
            each.moved = self.runtime.clock.monotonic()
            self._report_progress(each, rank, row)
        if rank == 0 and row.step == "store" and not each.master and row.port:
            each.master = host_port(self.specs[host].address, row.port)
            self._order(each, limits, list(each.trial.ranks)[1:])

    def _report_progress(self, each: _RunningTrial, rank: int, row: RankMessage) -> None:
        """Progress for people, once for all ranks; trials of parts are reported by the caller."""
        trial = each.trial
        if rank != 0 or each.number != 1:
            return
        if row.step == "joined":
            self.emit(Event("progress", f"{len(trial.ranks)} ranks have found each other"))
        elif row.step == "size":
            done = next(one for one in trial.rows() if one.bytes == row.bytes)
            text = f"all-reduce of {binary(done.bytes)}: {done.seconds * 1e3:.2f} ms, {done.bus_gb_per_s:.2f} GB/s"
            self.emit(Event("progress", text, data=asdict(done)))

    def _over(self, each: _RunningTrial, limits: TrialLimits) -> bool:
        """Whether a trial has ended; one that should have is ended."""
        now, trial = self.runtime.clock.monotonic(), each.trial
        for rank, host in trial.ranks.items():
            if host in self._gone and rank not in trial.ended:
                trial.errors.setdefault(rank, self._gone[host])
                trial.ended.add(rank)
        if trial.errors and each.failed is None:
            each.failed = now
        if trial.over or (each.stopped is not None and now - each.stopped > END_SECONDS):
            return True
        late = now > each.end or now - each.moved > limits.still
        if each.stopped is None and (late or (each.failed is not None and now - each.failed > PEER_ERROR_SECONDS)):
            trial.stopped, trial.given_up = True, not trial.errors
            each.stopped = now
            for host in trial.hosts:
                self._send(host, {"stop": each.number})
        return False
