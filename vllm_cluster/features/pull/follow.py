"""Follow a pull until every host's part has ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.models.weights import PullStatus, status
from vllm_cluster.kernel.text import age, count, size
from vllm_cluster.kernel.transport.base import SLOWEST

# Bytes a second below which files are so small that their bytes do not show how long the others take.
SLOW = 500_000
POLL_SECONDS = 1.0
# A rate is of this long.
WINDOW_SECONDS = 10.0
MIN_SECONDS = 2.0
# A host that does not answer for as long has failed for this pull.
LOST_SECONDS = 60.0
# A host that has not answered for as long is reported.
SILENT_SECONDS = 5.0
# Until a container that was made has its plan; where its maker died in between, it never has one.
START_SECONDS = 60.0
# A host that gets less than `SLOWEST`, in the same phase: its own program gives up after 900 s without a byte, but for
# what it hashes first.
STILL_SECONDS, HASHED_BYTES, MAX_HASHING = 1800.0, 50e6, 50_000.0
_ARRIVING = ("downloading", "copying", "receiving")


@dataclass(frozen=True)
class PullEnd:
    """How it ended on each host; `lost` do not answer."""

    hosts: Mapping[str, PullStatus]
    lost: tuple[str, ...]
    seconds: float

    @property
    def failed(self) -> bool:
        """Whether a host's part failed."""
        return any(one.phase == "failed" for one in self.hosts.values())


class _StatusCall:
    """One question to one host, on a thread of its own: a host that is frozen keeps no other waiting."""

    def __init__(self, connection: HostConnection, cluster: str) -> None:
        self.found: PullStatus | None = None
        self.failure: VclusterError | None = None
        self._connection, self._cluster = connection, cluster
        self._thread = connection.runtime.background(self._ask, f"pull {connection.name}")

    def _ask(self) -> None:
        try:
            self.found = status(self._connection, self._cluster)
        except VclusterError as error:
            self.failure = error
            with suppress(VclusterError):
                self._connection.reconnect()

    @property
    def over(self) -> bool:
        """Whether the host has answered, or will not."""
        return not self._thread.is_alive()


@dataclass
class _Seen:
    look: _StatusCall
    status: PullStatus = field(default_factory=lambda: PullStatus("starting"))
    samples: deque[tuple[float, int]] = field(default_factory=deque)
    answered: float = 0.0
    lost: bool = False
    shown: str = ""
    # When what had come was enough for the whole of `STILL_SECONDS`, and until when it is enough.
    moved: float = 0.0
    due: float = 0.0
    most: int = 0
    total: int = 0
    phases: set[str] = field(default_factory=set)

    def rate(self) -> float:
        """Bytes a second; 0 where it is not known."""
        if len(self.samples) < 2:
            return 0.0
        (first, before), (last, after) = self.samples[0], self.samples[-1]
        return max(0.0, (after - before) / (last - first)) if last - first >= MIN_SECONDS else 0.0


def follow(
    fleet: Fleet,
    cluster: str,
    names: Sequence[str],
    emit: Emit,
    check: Callable[[], None] = lambda: None,
) -> PullEnd:
    """Show how far each host is, until all have ended; where the source fails, all have. `check` may end it."""
    runtime, began = fleet.runtime, fleet.runtime.clock.monotonic()

    def ask(name: str) -> _StatusCall:
        return _StatusCall(fleet.connections[name], cluster)

    seen = {name: _Seen(ask(name), answered=began, moved=began, due=began + STILL_SECONDS) for name in names}
    emit(Event("phase", f"pulling to {', '.join(names)}"))
    while True:
        check()
        runtime.clock.sleep(POLL_SECONDS)
        now = runtime.clock.monotonic()
        for name, one in seen.items():
            if one.look.over:
                _take(one, now, began)
                one.look = one.look if one.status.over else ask(name)
            else:
                _miss(one, now, "")
        _show(seen, emit)
        if _over(seen):
            ended = {name: _ended(one) for name, one in seen.items()}
            return PullEnd(ended, tuple(name for name, one in seen.items() if one.lost), now - began)


def _miss(one: _Seen, now: float, why: str) -> None:
    """The host has not answered; `why` where it is known."""
    silent = now - one.answered
    one.lost = silent > LOST_SECONDS
    if not why and silent < SILENT_SECONDS:
        return
    text = f"it does not answer: {why}" if why else f"it has not answered for {silent:.0f} s"
    one.status = replace(one.status, phase="failed" if one.lost else one.status.phase, error=text)


def _take(one: _Seen, now: float, began: float) -> None:
    found, failure = one.look.found, one.look.failure
    if found is None:
        _miss(one, now, failure.message if failure else "")
        return
    one.answered, one.lost = now, False
    if found.phase == "starting" and now - began > START_SECONDS:
        found = replace(found, phase="failed", error="its program was never started")
    elif found.phase == "starting" and now - began > SILENT_SECONDS:
        left = START_SECONDS - (now - began)
        text = f"waiting for its plan: the command that made its container may have ended, {left:.0f} s left"
        found = replace(found, error=text)
    one.status = _moving(one, found, now)
    if found.phase not in _ARRIVING:
        one.samples.clear()  # what was there before came at no rate
    one.samples.append((now, found.bytes))
    while len(one.samples) > 2 and one.samples[0][0] < now - WINDOW_SECONDS:
        one.samples.popleft()


def _moving(one: _Seen, found: PullStatus, now: float) -> PullStatus:
    """The status, or that too little comes: a host may answer at each look that it has a byte more, without end."""
    # Each byte gives it time, as far as it is one of those that it had to get.
    one.total = one.total or found.total
    most = max(one.most, min(found.bytes, one.total))
    is_new = found.phase not in one.phases
    one.due = now + STILL_SECONDS if is_new else min(now + STILL_SECONDS, one.due + (most - one.most) / SLOWEST)
    one.moved, one.most = now if one.due >= now + STILL_SECONDS else one.moved, most
    one.phases.add(found.phase)
    if found.over or now < one.due + min(one.total / HASHED_BYTES, MAX_HASHING):
        return found
    text = f"less than {size(SLOWEST)}/s came for {age(now - one.moved)}: {found.error or found.phase}"
    return replace(found, phase="failed", error=text)


def _over(seen: Mapping[str, _Seen]) -> bool:
    statuses = [one.status for one in seen.values()]
    # What the source cannot have comes from nowhere else: the others would wait.
    source_failed = any(one.source and one.phase == "failed" for one in statuses)
    moving = any(one.rate() > 0 and not one.status.over for one in seen.values())
    # A host that still serves has all itself: once each does, nothing is left to be served.
    return all(one.over or one.phase == "serving" for one in statuses) or (source_failed and not moving)


def _ended(one: _Seen) -> PullStatus:
    if one.status.over or one.status.phase == "serving":
        return one.status
    return replace(one.status, phase="failed", error=one.status.error or "the source failed")


def _show(seen: Mapping[str, _Seen], emit: Emit) -> None:
    for name, one in seen.items():
        now, rate = one.status, one.rate()
        data = {"phase": now.phase, "bytes": now.bytes, "total_bytes": now.total, "error": now.error}
        data["bytes_per_second"] = round(rate)
        if now.phase in ("serving", "done", "failed") and one.shown == "end":
            continue
        one.shown = "end" if now.phase in ("serving", "done", "failed") else ""
        if now.phase in ("serving", "done"):
            emit(Event("done", f"has all {size(now.total)}", name, data))
        elif now.phase == "failed":
            emit(Event("failed", now.error, name, data))
        elif now.phase != "gone":
            emit(Event("progress", _words(now, rate), name, data))
    # Every host gets the same: one that has not begun, or has ended, counts from the first moment to the last.
    total = len(seen) * max(one.status.total for one in seen.values())
    there = sum(one.status.bytes for one in seen.values())
    rate = sum(one.rate() for one in seen.values())
    if total:
        text = f"pulling {size(there)} of {size(total)} on {count(len(seen), 'host')}{_left(total - there, rate)}"
        emit(Event("progress", text, data={"bytes": there, "total_bytes": total, "bytes_per_second": round(rate)}))


def _words(now: PullStatus, rate: float) -> str:
    trouble = f" ({now.error})" if now.error else ""
    if not now.total:
        return f"{now.phase}{trouble}"
    if now.bytes == now.total and now.phase in _ARRIVING:
        # Of 16 GB that came at 1.8 GB/s the last third of the time went into this.
        return f"writing the last of {size(now.total)} to the disk{trouble}"
    source = f" from {now.upstream}" if now.upstream else ""
    return f"{now.phase} {size(now.bytes)} of {size(now.total)}{source}{_left(now.total - now.bytes, rate)}{trouble}"


def _left(missing: int, rate: float) -> str:
    if not (rate > 0 and missing):
        return ""
    if rate < SLOW:
        return f", {size(int(rate))}/s"
    return f", {rate / 1e6:.0f} MB/s, {age(missing / rate)} left"
