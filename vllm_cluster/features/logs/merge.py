"""Brings the lines of many logs into one order by time, with bounded memory."""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from operator import attrgetter

from vllm_cluster.features.logs.lines import SECOND, Line
from vllm_cluster.kernel.clock import Clock

# Bytes that wait in all, with those on their way to the terminal; who reads a log waits while it is full, and so does
# its host. Of each log, what came at once may wait, or the merge would wait for it: 64 hosts took 160 MB by shares.
MAX_WAITING = 8 << 20
# A log that is followed and has had no line for so long has none: what others print is shown without it.
IDLE_SECONDS = 0.3
# Of logs that are followed no line waits longer for older ones: a host that prints lines of 1970 without end would hide
# those of all others. Of logs that end, the others do not wait for one that brings nothing newer for so long, nor again
# for one for which a line has waited `MAX_KEPT_SECONDS`.
MAX_HELD_SECONDS, MAX_KEPT_SECONDS = 30.0, 60.0
# What counts of the time for which what was taken is being shown: a pager takes nothing more while a person reads, and
# a log has no part in that. Not nothing: who sends lines without end would make no time pass.
SHOW_SECONDS = 1.0
# What a line costs beside its text.
LINE_SIZE = 150
# The first line may be at the end of 150 MB that Docker searches for it.
FIRST_SECONDS = 1.0
_AT = attrgetter("at")
_NEVER = -(1 << 62)
# Greater than any time.
_ALWAYS = float("inf")


@dataclass
class _Queue:
    lines: list[Line] = field(default_factory=list)
    # When how many of these came.
    came: deque[tuple[float, int]] = field(default_factory=deque)
    size: int = 0
    newest: int = _NEVER
    # Until when a line that is older than those of others may still come; None while it is not known.
    until: float | None = None
    over: bool = False
    host: str = ""
    # When it brought something newer than all before, and since when its reader waits for others: that does not count.
    rose: float = 0.0
    blocked: float | None = None
    # Whether the others wait for it no more, and whether that is for good.
    passed: bool = False
    late: bool = False

    def is_stalled(self, now: float) -> bool:
        """Whether it has brought nothing newer for too long."""
        return self.late or (now if self.blocked is None else self.blocked) - self.rose > MAX_HELD_SECONDS

    def held(self, since: float) -> int:
        """How many lines came before a moment."""
        return sum(number for _, number in takewhile(lambda one: one[0] < since, self.came))

    def take(self, count: int) -> list[Line]:
        """Take the first lines out of it."""
        taken = self.lines[:count]
        del self.lines[:count]
        self.size -= sum(map(_size, taken))
        while count:
            moment, number = self.came.popleft()
            if number > count:
                self.came.appendleft((moment, number - count))
            count -= min(number, count)
        return taken


class LogMerge:
    """Takes lines of each log in the order in which it has them, and gives those of all in the order of their times.

    A log's own order is kept where its times go back. Lines that come late, after a cut, are given when they come.
    """

    def __init__(self, clock: Clock, *, follow: bool) -> None:
        self._queues: dict[object, _Queue] = {}
        # Bytes that wait, and those that were taken last: they are on their way until the next ones are.
        self._waiting = self._taken = 0
        self._clock, self._follow = clock, follow
        # The time so far, and since when it passes: in full only while lines are waited for.
        self._past, self._since, self._taking = 0.0, clock.monotonic(), False
        self._changed = threading.Condition()
        self._closed = False
        self._passed: dict[str, bool] = {}
        self._judge = 0.0

    def add(self, log: object, host: str = "") -> None:
        """Wait for the lines of this log of a host, too."""
        with self._changed:
            self._queues[log] = _Queue(host=host, rose=self._now())

    def put(self, log: object, lines: Sequence[Line], seen: int | None = None) -> None:
        """Add lines; then waits while too many have not been taken, so that none are held beside those that wait here.

        `seen` is the time of the last line that was read, also where it is none of those that are asked for.

        Raises:
            EOFError: nothing is taken any more.
        """
        queue = self._queues[log]
        with self._changed:
            # None was printed after it was read: one of the year 9999 would be the last.
            newest, latest = queue.newest, int(self._clock.time() * SECOND)
            for line in lines:
                newest = max(newest, min(line.at, latest))
                queue.lines.append(line if line.at == newest else Line(newest, *line[1:]))
            newest, now = newest if seen is None else max(newest, min(seen, latest)), self._now()
            if newest > queue.newest:
                queue.newest, queue.rose, queue.passed = newest, now, queue.late
            size = sum(map(_size, lines))
            queue.size += size
            self._waiting += size
            queue.until = now + IDLE_SECONDS
            if lines:
                queue.came.append((now, len(lines)))
            self._changed.notify_all()
            with self.waits(log):
                while self._is_full(queue) and not self._closed:
                    self._changed.wait(IDLE_SECONDS)
            if self._closed:
                raise EOFError("the reader has gone")

    @contextmanager
    def waits(self, log: object) -> Iterator[None]:
        """Count none of the time as the log's own in which its reader waits for others."""
        queue = self._queues[log]
        with self._changed:
            began = queue.blocked = self._now()
        try:
            yield
        finally:
            with self._changed:
                queue.rose, queue.blocked = queue.rose + self._now() - began, None

    def _is_full(self, queue: _Queue) -> bool:
        share = MAX_WAITING // len(self._queues)
        return queue.size > share or ((self._taken or queue.size) > 0 and self._waiting + self._taken > MAX_WAITING)

    def begin(self, log: object) -> None:
        """The log is being read from now on: its first line may take a while."""
        with self._changed:
            queue, now = self._queues[log], self._now()
            queue.until, queue.rose, queue.passed = now + FIRST_SECONDS, now, queue.late
            self._changed.notify_all()

    def pause(self, log: object) -> None:
        """The log cannot be read for now: the others do not wait for it."""
        with self._changed:
            self._queues[log].until = 0.0
            self._changed.notify_all()

    def end(self, log: object) -> None:
        """The log has no more lines."""
        with self._changed:
            self._queues[log].over = True
            self._changed.notify_all()

    def close(self) -> None:
        """Take nothing any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def take(self, seconds: float) -> list[Line] | None:
        """The lines that are due, after at most so many seconds; None once every log has ended."""
        with self._changed:
            self._taken = 0
            self._changed.notify_all()
            self._pass_time(taking=True)
            try:
                if not (lines := self._due()):
                    if all(queue.over and not queue.lines for queue in self._queues.values()):
                        return None
                    self._changed.wait(seconds)
                    lines = self._due()
            finally:
                self._pass_time(taking=False)
            if lines:
                self._changed.notify_all()
        lines.sort(key=_AT)
        return lines

    def _now(self) -> float:
        """How long lines have been waited for."""
        passed = self._clock.monotonic() - self._since
        return self._past + (passed if self._taking else min(passed, SHOW_SECONDS))

    def _pass_time(self, *, taking: bool) -> None:
        self._past, self._since, self._taking = self._now(), self._clock.monotonic(), taking

    def passed_over(self) -> list[str]:
        """The hosts for whose logs the others have stopped waiting since the last call."""
        with self._changed:
            hosts, self._passed = self._passed, {}
            return list(hosts)

    def _follow_known(self, now: float) -> float:
        """The time to which every log is known that is not idle."""
        queues = self._queues.values()
        return min((q.newest for q in queues if not q.over and (q.until is None or now < q.until)), default=_ALWAYS)

    def _known(self, now: float) -> float:
        """The time to which every log is known for which the others wait."""
        queues = [queue for queue in self._queues.values() if not queue.over]
        least = min((queue.newest for queue in queues if not queue.is_stalled(now)), default=_ALWAYS)
        # One after the other: what was kept back by one has yet to come.
        longest = now > self._judge and any(queue.held(now - MAX_KEPT_SECONDS) for queue in self._queues.values())
        self._judge = now + MAX_HELD_SECONDS if longest else self._judge
        for queue in queues:
            queue.late = queue.late or (longest and queue.newest == least)
            if queue.is_stalled(now) and not (queue.passed or queue.lines):
                queue.passed = self._passed[queue.host] = True
        return min((queue.newest for queue in queues if not queue.is_stalled(now)), default=_ALWAYS)

    def _due(self) -> list[Line]:
        """All lines up to the time to which every log is known."""
        now = self._now()
        known = self._follow_known(now) if self._follow else self._known(now)
        due: list[Line] = []
        for queue in self._queues.values():
            held = queue.held(now - MAX_HELD_SECONDS) if self._follow else 0
            size = queue.size
            due += queue.take(max(held, bisect_right(queue.lines, known, key=_AT)))
            self._taken += size - queue.size
        self._waiting -= self._taken
        return due


def _size(line: Line) -> int:
    # Not its characters: one emoji makes each of them four bytes.
    return sys.getsizeof(line.text) + LINE_SIZE
