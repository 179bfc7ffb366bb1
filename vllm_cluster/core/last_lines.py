"""The last lines of a log, before what is still to come."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from vllm_cluster.core.log_lines import Line


class LastLines:
    """Keeps the last lines of what was there when a log was asked for; what is printed later passes.

    `until` is that moment, in nanoseconds of the clock of the lines; None where nothing is to come.
    """

    def __init__(self, number: int, until: int | None) -> None:
        self._kept: deque[Line] = deque(maxlen=number)
        self._until = until

    def keep(self, lines: Sequence[Line]) -> list[Line]:
        """The lines to show now, in their order: none before the first new one."""
        until = self._until
        new = [] if until is None else [line for line in lines if line.at >= until]
        self._kept += [line for line in lines if until is None or line.at < until]
        return [*self.rest(), *new] if new else []

    def rest(self) -> list[Line]:
        """The lines that were kept; after this they are kept no more."""
        kept = list(self._kept)
        self._kept.clear()
        return kept
