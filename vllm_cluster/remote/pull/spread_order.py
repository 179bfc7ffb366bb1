"""Who gets from whom: a chain that is kept in order while hosts start, end, come back and slow down.

One place decides, the source, from the progress that every host reports: hosts that judge by themselves swing to and
fro (a clean transfer took 2.9 times as long), and all that are behind a dead host stall together.
Pure: the time and the reports are given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

# A host that has reported nothing for this long takes no part: those behind it get from the one before it.
LOST_SECONDS = 2.0
# Rates are of this long, and a host is judged once it has got from the same host for as long.
WINDOW_SECONDS = 3.0
# A host slower than this share of what its sender could give holds up those behind it.
SLOW = 0.6
RECOVERED = 0.8
# How much more its sender must have: a host that has nearly all that its sender has waits for the sender.
BEHIND_SECONDS = 1.0
BROKEN_SECONDS = 10.0
MIN_SLACK = 4 << 20


@dataclass
class _ChainHost:
    rank: int
    samples: deque[tuple[float, int]] = field(default_factory=deque)
    upstream: str = ""
    since: float = 0.0
    # Its rate, where it is slower than the others.
    slow: float | None = None
    # The hosts that were slow with this one as their sender.
    victims: set[str] = field(default_factory=set)

    @property
    def bytes(self) -> int:
        return self.samples[-1][1] if self.samples else 0

    def rate(self, now: float) -> float:
        """Return bytes a second over the window, 0 before there is one."""
        if not self.samples or self.samples[-1][0] - self.samples[0][0] < WINDOW_SECONDS * 0.8:
            return 0.0
        (first, before), (last, after) = self.samples[0], self.samples[-1]
        return (after - before) / (last - first)


class Chain:
    """The order of the hosts that take part, the source first."""

    def __init__(self, names: Sequence[str], total: int) -> None:
        self._source, self._total = names[0], total
        self._hosts = {name: _ChainHost(rank) for rank, name in enumerate(names)}
        self._order = [self._source]
        self._broken: dict[tuple[str, str], float] = {}
        # The highest rate that any receiver had: what a link here can do.
        self._best = 0.0

    @property
    def order(self) -> tuple[str, ...]:
        """The hosts that take part, the source first."""
        return tuple(self._order)

    def waiting_for(self) -> list[str]:
        """Return the hosts that have not reported all bytes."""
        return [name for name, host in self._hosts.items() if name != self._source and host.bytes < self._total]

    def bytes(self) -> dict[str, int]:
        """Return what each host had at its last report."""
        return {name: host.bytes for name, host in self._hosts.items()}

    def source_has(self, count: int, now: float) -> None:
        """Note how far the source is: it may be downloading."""
        self._sample(self._hosts[self._source], count, now)

    def report(self, name: str, count: int, now: float, failed: str = "") -> str:
        """Note how far a host is and whom it could not get from; return whom it gets from now.

        Raises:
            KeyError: not a host of this pull.
        """
        host = self._hosts[name]
        if failed and failed != self._source and failed in self._order:
            # It comes back with its next report, behind those that have more: its place would cost them half a link.
            self._order.remove(failed)
        if failed:
            self._broken[failed, name] = now + BROKEN_SECONDS
        self._drop_lost(now)
        self._sample(host, count, now)
        if name not in self._order:
            host.samples = deque([(now, count)])
            self._order.insert(self._place(name), name)
        self._judge(name, now)
        upstream = self._upstream(name, now)
        if upstream != host.upstream:
            host.upstream, host.since = upstream, now
            host.samples = deque([host.samples[-1]])
        return upstream

    def _sample(self, host: _ChainHost, count: int, now: float) -> None:
        host.samples.append((now, count))
        while len(host.samples) > 2 and host.samples[1][0] <= now - WINDOW_SECONDS:
            host.samples.popleft()

    def _drop_lost(self, now: float) -> None:
        self._broken = {pair: until for pair, until in self._broken.items() if until > now}
        kept = [name for name in self._order[1:] if self._hosts[name].samples[-1][0] > now - LOST_SECONDS]
        self._order = [self._source, *kept]

    def _place(self, name: str) -> int:
        """Return the place of a host: before the slow ones, behind those that have more or come first in the plan."""
        me, slack = self._hosts[name], max(self._best, MIN_SLACK)
        place = 1
        for index, other in enumerate(self._order[1:], 1):
            host = self._hosts[other]
            if me.slow is None:
                first = host.slow is None and (host.bytes > me.bytes + slack or host.rank < me.rank)
            else:
                first = host.slow is None or host.slow > me.slow
            first = first or (name, other) in self._broken
            place = index + 1 if first else place
        return place

    def _upstream(self, name: str, now: float) -> str:
        before = self._order[: self._order.index(name)]
        return next((other for other in reversed(before) if (other, name) not in self._broken), self._source)

    def _judge(self, name: str, now: float) -> None:
        """Put a host that is slower than its sender could give behind all others, and clear one that is not."""
        host, sender = self._hosts[name], self._hosts[self._hosts[name].upstream or self._source]
        rate = host.rate(now)
        if now - host.since < WINDOW_SECONDS or (not rate and host.bytes >= self._total):
            return
        self._best = max(self._best, rate)
        # A sender that is whole could give what a link can do, another what it gets itself.
        could = self._best if sender.bytes >= self._total else sender.rate(now)
        if host.slow is not None and rate >= RECOVERED * could > 0:
            host.slow = None
        if rate >= SLOW * could or sender.bytes - host.bytes < BEHIND_SECONDS * could or host.bytes >= self._total:
            return
        self._blame(name, host, sender, rate)

    def _blame(self, name: str, host: _ChainHost, sender: _ChainHost, rate: float) -> None:
        sender.victims.add(name)
        recovered = {other for other in sender.victims - {name} if self._hosts[other].slow is None}
        if sender.rank == 0 and len(sender.victims) > max(1, (len(self._hosts) - 1) // 2):
            # Whoever is next to the source is slow: the source is, and nothing is gained by another order.
            self._best = rate
            for other in sender.victims:
                self._hosts[other].slow = None
            sender.victims.clear()
        elif recovered and sender.rank:
            # They were slow with this sender alone: it is the one that sends slowly.
            sender.victims.clear()
            self._move(next(other for other, found in self._hosts.items() if found is sender), rate)
        else:
            self._move(name, rate)

    def _move(self, name: str, rate: float) -> None:
        self._hosts[name].slow = rate
        if name in self._order:
            self._order.remove(name)
            self._order.insert(self._place(name), name)
