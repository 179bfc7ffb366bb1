"""What a person sees on a terminal, after all that a program wrote to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import pyte

from tests.support.terminal import Terminal


class Screen(Terminal):
    """A terminal whose rows can be read."""

    def __init__(self, argv: Sequence[str | Path], *, env: Mapping[str, str], size: tuple[int, int]) -> None:
        super().__init__(argv, env=env, size=size)
        self.screen = pyte.Screen(size[1], size[0])
        self._stream, self._fed = pyte.Stream(self.screen), 0

    def rows(self) -> list[str]:
        """The rows as they are now, without those below that are empty."""
        self._stream.feed(self.shown[self._fed :])
        self._fed = len(self.shown)
        return "\n".join(row.rstrip() for row in self.screen.display).rstrip().split("\n")

    def styled(self) -> list[list[tuple[str, str]]]:
        """The same rows, as pieces with their styles in the words of rich."""
        rows = [[self.screen.buffer[y][x] for x in range(self.screen.columns)] for y in range(len(self.rows()))]
        return [
            [("".join(cell.data for cell in cells), style) for style, cells in groupby(row, _style)] for row in rows
        ]

    def until_rows(self, condition: Callable[[str], object], seconds: float = 120) -> list[str]:
        """Wait until the rows are as they should be; these rows."""
        deadline = time.monotonic() + seconds
        while not condition("\n".join(rows := self.rows())):
            self.until_more(self.shown, max(1.0, deadline - time.monotonic()))
        return rows


def _style(cell: pyte.screens.Char) -> str:
    """pyte calls a dark yellow brown."""
    return f"{'bold ' if cell.bold else ''}{cell.fg.replace('brown', 'yellow')}"
