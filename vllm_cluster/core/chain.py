"""The order in which hosts pass files on: a chain is as fast as the slowest link before its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

# Below this share of the middle rate a host is slow: measured rates of equal links differ by less.
SLOW = 0.6


def order_chain(source: str, hosts: Sequence[str], rates: Mapping[tuple[str, str], float]) -> list[str]:
    """Return the source, the hosts in their order, and the slow ones last, the slowest at the end.

    `rates` are of links, by sender and receiver, in one unit; a link that was not measured counts as usual.
    """
    own = {host: _rate(host, rates) for host in hosts if host != source}
    known = [rate for rate in own.values() if rate is not None]
    usual = median(known) if known else 0.0
    slow = {host: rate for host, rate in own.items() if rate is not None and rate < SLOW * usual}
    return [source, *(host for host in own if host not in slow), *sorted(slow, key=lambda host: -slow[host])]


def _rate(host: str, rates: Mapping[tuple[str, str], float]) -> float | None:
    """Return what a host can both receive and send: the best link of each way, as the other end may be the slow one."""
    received = [rate for (_, receiver), rate in rates.items() if receiver == host]
    sent = [rate for (sender, _), rate in rates.items() if sender == host]
    return min((max(way) for way in (received, sent) if way), default=None)
