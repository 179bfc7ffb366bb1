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
LOST_SECONDS = 2.5
# Without a report of any host for this long it was the source that was away, and it judges by what it sees from then.
AWAY_SECONDS = 1.0
# Rates are of this long, and a host is judged once it has got from the same host for as long.
WINDOW_SECONDS = 3.0
# A host slower than this share of what its sender could give holds up those behind it.
SLOW = 0.6
RECOVERED = 0.8
# How much more its sender must have: a host that has nearly all that its sender has waits for the sender.
BEHIND_SECONDS = 1.0
BROKEN_SECONDS = 10.0
# One that cannot get from more than so many within that time is what is wrong: no other is put out for it.
MAX_ACCUSED = 2
MIN_SLACK = 4 << 20
# No rate alone shows that a sender is slow where nothing faster was seen: one host at a time gets from the source for a
# window, after waits that grow, and only where it has so long to go that it may gain by it.
TRIAL_SECONDS, MAX_TRIAL_SECONDS = 15.0, 240.0
TRIAL_WORTH_SECONDS = 120.0
# A sender that gives less than this share of what the source gave is left.
FASTER = 0.5


@dataclass
class _ChainHost:
    name: str
    samples: deque[tuple[float, int]] = field(default_factory=deque)
    bytes: int = 0
    reported: float = 0.0
    # Whether it reports, and no other failed to get from it.
    present: bool = False
    upstream: str = ""
    since: float = 0.0
    # Its rate, where it is slower than the others.
    slow: float | None = None
    # The hosts that were slow with this one as their sender.
    victims: set[str] = field(default_factory=set)
    # How often it got from the source to compare.
    trials: int = 0

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


@dataclass(frozen=True)
class _Trial:
    """A host that gets from the source for a window, and what its sender gave before."""

    host: _ChainHost
    sender: _ChainHost
    before: float
    began: float


class Chain:
    """The order of the hosts, the source first; each gets from the last before it that is present."""

    def __init__(self, names: Sequence[str], total: int) -> None:
        self._total = total
        self._hosts = {name: _ChainHost(name) for name in names}
        self._order = list(self._hosts.values())
        self._source = self._order[0]
        self._source.present = True
        self._broken: dict[tuple[str, str], float] = {}
        # The highest rate that any receiver had: what a link here can do.
        self._best = 0.0
        self._last = 0.0
        self._trial: _Trial | None = None
        self._trial_due, self._trial_wait = float("inf"), TRIAL_SECONDS

    @property
    def order(self) -> tuple[str, ...]:
        """The hosts that take part, the source first."""
        return tuple(host.name for host in self._order if host.present)

    def waiting_for(self) -> list[str]:
        """Return the hosts that have not reported all bytes."""
        return [name for name, host in self._hosts.items() if host is not self._source and host.bytes < self._total]

    def source_has(self, count: int, now: float) -> None:
        """Note how far the source is: it may be downloading."""
        self._source.sample(count, now)

    def report(self, name: str, count: int, now: float, failed: str = "") -> str:
        """Note how far a host is and whom it could not get from; return whom it gets from now.

        Raises:
            KeyError: not a host of this pull.
        """
        host = self._hosts[name]
        self._look_for_lost(now)
        # A host that was away itself could reach none of the others; a report of another host does not make it so.
        was_here = now - host.reported <= AWAY_SECONDS
        # Nor does it know of hosts that it was not sent to: one that names any keeps all of them from each other.
        if was_here and failed in self._hosts and failed == host.upstream != self._source.name:
            accused = sum(by == name for _, by in self._broken)
            self._hosts[failed].present = self._hosts[failed].present and accused >= MAX_ACCUSED
            self._broken[failed, name] = now + BROKEN_SECONDS
        host.sample(count, now)
        if not host.present:
            host.present = True
            host.forget(now)
            self._put_back(host)
        if self._trial:
            self._weigh(self._trial, now)
        if self._trial is None or self._trial.host is not host:
            self._judge(host, now)
            self._try(host, now)
        upstream = self._source.name if self._trial and self._trial.host is host else self._upstream(host)
        if upstream != host.upstream:
            host.upstream = upstream
            host.forget(now)
        return upstream

    def _look_for_lost(self, now: float) -> None:
        away, self._last = now - self._last > AWAY_SECONDS, now
        for host in self._order[1:]:
            if away:
                host.reported = now
                host.forget(now)
            elif host.reported <= now - LOST_SECONDS:
                host.present = False
        self._broken = {pair: until for pair, until in self._broken.items() if until > now}

    def _put_back(self, host: _ChainHost) -> None:
        """Put a host that comes or returns behind those that have more: before them it would halve a link."""
        ahead = [
            place
            for place, other in enumerate(self._order)
            if (other.present and other.slow is None and other.bytes > host.bytes + self._slack())
            or (host.name, other.name) in self._broken
        ]
        if self._order.index(host) < max(ahead, default=0):
            self._move(host, max(ahead))

    def _move(self, host: _ChainHost, place: int) -> None:
        """Move a host back to behind the one that is in that place, and the slow ones behind all, the slowest last."""
        self._order.remove(host)
        self._order.insert(place, host)
        self._order.sort(key=lambda other: -other.slow if other.slow is not None else float("-inf"))

    def _upstream(self, host: _ChainHost) -> str:
        for other in reversed(self._order[: self._order.index(host)]):
            # A slow one that has less has nothing for it, and will not for long.
            ahead = other.slow is None or other.bytes + self._slack() >= host.bytes
            if other.present and ahead and (other.name, host.name) not in self._broken:
                return other.name
        return self._source.name

    def _slack(self) -> float:
        """Return how many bytes may lie between two reports of hosts that are level."""
        return max(self._best, MIN_SLACK)

    def _judge(self, host: _ChainHost, now: float) -> None:
        """Put a host that is slower than its sender could give behind all others, and clear one that is not."""
        sender, rate = self._hosts[host.upstream or self._source.name], host.rate()
        if now - host.since < WINDOW_SECONDS or host.bytes >= self._total:
            return
        self._best = max(self._best, rate)
        # A sender that is whole could give what a link can do, another what it gets itself.
        could = self._best if sender.bytes >= self._total else sender.rate()
        if host.slow is not None and rate >= RECOVERED * could > 0:
            host.slow = None
        if sender.bytes - host.bytes <= BEHIND_SECONDS * could or self._shares(host):
            return
        if rate < SLOW * could:
            self._blame(host, sender, rate)
        elif host.slow is not None:
            host.slow = rate
            self._move(host, self._order.index(host))

    def _shares(self, host: _ChainHost) -> bool:
        """Return whether its sender serves another too, and so gives it half."""
        others = (other for other in self._order if other is not host and other.upstream == host.upstream)
        return any(other.present and other.bytes < self._total for other in others)

    def _try(self, host: _ChainHost, now: float) -> None:
        """Let a host get from the source for a while, where one could be faster so and it is this one's turn."""
        self._trial_due = min(self._trial_due, now + self._trial_wait)
        if self._trial or now < self._trial_due:
            return
        could = [other for other in self._order[1:] if self._is_worth_a_trial(other, now)]
        # One behind a slow sender first, and of those the nearest to the source: its sender is the slow one.
        if host is min(could, key=lambda other: (other.trials, other.rate() >= SLOW * self._best), default=None):
            self._trial = _Trial(host, self._hosts[host.upstream], host.rate(), now)
            host.trials += 1
            self._trial_wait = min(4 * self._trial_wait, MAX_TRIAL_SECONDS)
            self._trial_due = now + self._trial_wait

    def _is_worth_a_trial(self, host: _ChainHost, now: float) -> bool:
        more, rate = self._source.bytes - host.bytes, host.rate()
        return (
            host.present
            and host.upstream not in ("", self._source.name)
            and now - host.since >= WINDOW_SECONDS
            and more > max(rate * BEHIND_SECONDS, MIN_SLACK)
            and self._total - host.bytes > rate * TRIAL_WORTH_SECONDS
            # Once each, so that two that are slow together are found, and again where it could be faster.
            and (not host.trials or rate < SLOW * self._best)
        )

    def _weigh(self, trial: _Trial, now: float) -> None:
        """End a trial once there is a rate, or none will come; put a sender that gave much less behind all others."""
        host, sender = trial.host, trial.sender
        weighed = host.upstream == self._source.name and now - host.since >= WINDOW_SECONDS
        if not weighed and host.present and now - trial.began <= 3 * WINDOW_SECONDS:
            return
        self._trial = None
        self._best = max(self._best, host.rate() if weighed else 0.0)
        if weighed and trial.before < FASTER * host.rate():
            host.slow, sender.slow = None, trial.before
            self._move(sender, len(self._order))
        # Who else gets from the source had half of it meanwhile.
        for other in self._order:
            other.forget(now)

    def _blame(self, host: _ChainHost, sender: _ChainHost, rate: float) -> None:
        sender.victims.add(host.name)
        victims = [self._hosts[name] for name in sender.victims]
        if sender is self._source:
            if len(victims) > max(1, (len(self._hosts) - 1) // 2):
                # Whoever is next to the source is slow: the source is, and no other order is better.
                self._best = rate
                for victim in victims:
                    victim.slow = None
                sender.victims.clear()
                return
        elif any(victim.slow is None for victim in victims if victim is not host):
            # That one was slow with this sender alone: the sender is slow.
            sender.victims.clear()
            host = sender
        host.slow = rate
        self._move(host, len(self._order))
