"""How many lines of a log are read where none of them is to come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from vllm_cluster.kernel.docker.calls import TooLong

T = TypeVar("T")
# Docker keeps 150 MB of a container, which are 2.2 million lines of one character: they take 11 s. Of files of ranks
# a line takes three times as long, and their bytes alone would let 48 million pass.
MAX_LINES = 2_500_000


class RowLimit:
    """The lines of one log that were read so far; one that is followed has no end."""

    def __init__(self, host: str, log: str, *, follow: bool) -> None:
        self._host, self._log, self._follow, self._count = host, log, follow, 0

    def counted(self, lines: Sequence[T]) -> Sequence[T]:
        """Return the lines.

        Raises:
            TooLong: with them there are more than are read.
        """
        self._count += len(lines)
        if self._count > MAX_LINES and not self._follow:
            text = f"logs: not shown to its end: more than {MAX_LINES:,} lines of {self._log}"
            raise TooLong(self._host, text, again=())
        return lines
