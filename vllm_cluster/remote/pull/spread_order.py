"""Who gets from whom: a chain in the order of the plan; who was away, or is slow, falls behind all others.

One place decides, the source, from the bytes that every host reports: hosts that judge by themselves swing to and fro
(a clean transfer took 2.9 times as long). Pure: the time and the reports are given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

# A host that has reported nothing for this long takes no part: those behind it get from the one before it.
LOST_SECONDS = 2.5
# Without a report of any host for this long it was the source that was away, and it judges by what it sees from then.
AWAY_SECONDS = 1.0
# Rates are of this long, and a host is judged once it has got from the same host for as long.
WINDOW_SECONDS = 3.0
# A host slower than this share of what its sender could give holds up those behind it.
SLOW = 0.6
# What may lie between two reports of hosts that are level: what comes in a second, at least this.
MIN_SLACK = 4 << 20


@dataclass
class _ChainHost:
    samples: deque[tuple[float, int]] = field(default_factory=deque)
    bytes: int = 0
    reported: float = 0.0
    present: bool = False
    upstream: str = ""
    since: float = 0.0

    def sample(self, count: int, now: float) -> None:
        """Note how far it is."""
        self.bytes, self.reported = count, now
        self.samples.append((now, count))
        while len(self.samples) > 2 and self.samples[1][0] <= now - WINDOW_SECONDS:
            self.samples.popleft()

    def forget(self, now: float) -> None:
        """Measure its rate from now."""
        self.samples.clear()
        self.since = now

    def rate(self) -> float:
        """Return bytes a second over the window, 0 before there is one."""
        if len(self.samples) < 2 or self.samples[-1][0] - self.samples[0][0] < WINDOW_SECONDS * 0.8:
            return 0.0
        (first, before), (last, after) = self.samples[0], self.samples[-1]
        return (after - before) / (last - first)


class Chain:
    """The hosts in their order, the source first; each gets from the last before it that takes part."""

    def __init__(self, names: Sequence[str], total: int) -> None:
        self._total, self._source = total, names[0]
        self._hosts = {name: _ChainHost() for name in names}
        self._hosts[self._source].present = True
        # Those that fell behind, for good: who was away, the ones with more first, and behind them who is slow.
        self._back: list[str] = []
        self._slow: list[str] = []
        # Of each sender the first host that was slow with it.
        self._victims: dict[str, str] = {}
        # The highest rate that any receiver had: what a link here can do.
        self._best = 0.0
        self._last = 0.0

    @property
    def order(self) -> tuple[str, ...]:
        """The hosts that take part, the source first."""
        behind = (*self._back, *self._slow)
        chain = (*(name for name in self._hosts if name not in behind), *behind)
        return tuple(name for name in chain if self._hosts[name].present)

    def waiting_for(self) -> list[str]:
        """Return the hosts that have not reported all bytes."""
        return [name for name, host in self._hosts.items() if name != self._source and host.bytes < self._total]

    def source_has(self, count: int, now: float) -> None:
        """Note how far the source is: it may be downloading."""
        self._hosts[self._source].sample(count, now)

    def report(self, name: str, count: int, now: float, failed: str = "") -> str:
        """Note how far a host is and whom it could not get from; return whom it gets from now.

        Raises:
            KeyError: not a host of this pull.
        """
        host = self._hosts[name]
        self._look_for_lost(now)
        # A host that was away itself could reach none of the others.
        was_here = host.present and now - host.reported <= AWAY_SECONDS
        if was_here and failed in self._hosts and failed != self._source:
            self._hosts[failed].present = False
            self._put_behind(failed)
        host.sample(count, now)
        if not host.present:
            host.present = True
            host.forget(now)
            # Before one that has more it would halve the link of the host before both.
            behind = self.order[self.order.index(name) + 1 :]
            if any(self._hosts[other].bytes > count + self._slack() for other in behind):
                self._put_behind(name)
        self._judge(name, now)
        upstream = self._before(name)
        if upstream != host.upstream:
            host.upstream = upstream
            host.forget(now)
        return upstream

    def _before(self, name: str) -> str:
        order = self.order
        return order[order.index(name) - 1]

    def _look_for_lost(self, now: float) -> None:
        away, self._last = now - self._last > AWAY_SECONDS, now
        for name, host in self._hosts.items():
            if away:
                host.reported = now
                host.forget(now)
            elif name != self._source and host.reported <= now - LOST_SECONDS:
                host.present = False

    def _put_behind(self, name: str) -> None:
        """Put a host behind all but the slow ones, and those that were away too and have less."""
        if name not in self._slow:
            others = [other for other in self._back if other != name]
            more = [other for other in others if self._hosts[other].bytes >= self._hosts[name].bytes]
            self._back = [*more, name, *(other for other in others if other not in more)]

    def _slack(self) -> float:
        return max(self._best, MIN_SLACK)

    def _judge(self, name: str, now: float) -> None:
        """Put a host that is slower than its sender could give behind all others."""
        host, sender = self._hosts[name], self._hosts[self._hosts[name].upstream or self._source]
        rate = host.rate()
        if now - host.since < WINDOW_SECONDS or host.bytes >= self._total:
            return
        self._best = max(self._best, rate)
        # A sender that is whole could give what a link can do, another what it gets itself.
        could = self._best if sender.bytes >= self._total else sender.rate()
        waits = sender.bytes - host.bytes <= could
        if name not in self._slow and not waits and rate < SLOW * could:
            self._blame(name, host.upstream, rate)

    def _blame(self, name: str, sender: str, rate: float) -> None:
        first = self._victims.setdefault(sender, name)
        if first != name and sender != self._source:
            # Two were slow with this sender alone: the sender is.
            self._slow.remove(first)
            name = sender
        if len(self._slow) >= len(self._hosts) // 2:
            # Whoever is next to the source is slow: the source is, and no other order is better.
            self._best = rate
            self._slow.clear()
            self._victims.clear()
            return
        self._back = [other for other in self._back if other != name]
        self._slow.append(name)
