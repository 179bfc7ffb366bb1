"""Folds lines that repeat: the first is shown at once, the others as a count."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from vllm_cluster.core.log_lines import SECOND, Line

WINDOW = 5 * SECOND
# More wordings than this within a window are not folded.
WORDINGS = 10_000
# What differs between ranks that print the same: numbers, addresses in memory, and the name of the process.
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass
class _Repeated:
    until: int
    last: Line
    hosts: dict[str, None] = field(default_factory=dict)
    count: int = 0


class Fold:
    """Lines that differ in their numbers alone, of any hosts and ranks, within 5 s of the first."""

    def __init__(self) -> None:
        self._open: dict[str, _Repeated] = {}

    def fold(self, lines: Iterable[Line], now: int) -> list[Line]:
        """The lines that are shown now, at a time in nanoseconds since 1970."""
        shown: list[Line] = []
        for line in lines:
            shown += self._over(line.at)
            wording = _NUMBER.sub("0", line.text)
            if repeated := self._open.get(wording):
                repeated.count += 1
                repeated.last = line
                repeated.hosts[line.host] = None
                continue
            shown.append(line)
            if len(self._open) < WORDINGS:
                self._open[wording] = _Repeated(line.at + WINDOW, line)
        return shown + self._over(now)

    def rest(self) -> list[Line]:
        """What is left to be shown at the end."""
        return self._over(1 << 62)

    def _over(self, now: int) -> list[Line]:
        """The counts of windows that have ended; they began in the order in which they are kept."""
        shown: list[Line] = []
        while self._open:
            wording, repeated = next(iter(self._open.items()))
            if repeated.until > now:
                break
            del self._open[wording]
            if repeated.count == 1:
                shown.append(repeated.last)
            elif repeated.count:
                hosts = ", ".join(repeated.hosts)
                text = f"{repeated.last.text} [repeated {repeated.count} times on {hosts}]"
                last = repeated.last
                shown.append(Line(last.at, last.host, last.source, text, last.rank))
        return shown
