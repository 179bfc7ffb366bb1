"""A table of text that fits its terminal: columns that matter least are left out first, and no cell is broken."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence

from vllm_cluster.kernel.terminal.printable import cells

GAP = 2


def columns() -> int | None:
    """The width of the terminal on standard output; None where the output goes elsewhere and is not to be cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(titles: Mapping[str, int], rows: Sequence[Mapping[str, str]], width: int | None) -> list[str]:
    """The lines of a table, its titles first. The numbers are ranks: the highest is left out first, 0 never."""
    kept = [title for title in titles if any(row[title] for row in rows)]

    def widths() -> dict[str, int]:
        return {title: max(len(title), *(len(row[title]) for row in rows)) for title in kept}

    while width and sum(widths().values()) + GAP * (len(kept) - 1) > width and any(titles[title] for title in kept):
        kept.remove(max(kept, key=lambda title: titles[title]))
    wide = widths()
    lines = [{title: title.upper() for title in kept}, *rows]
    joined = ((" " * GAP).join(line[title].ljust(wide[title]) for title in kept).rstrip() for line in lines)
    return [cut(line, width) for line in joined]


def cut(line: str, width: int | None) -> str:
    """One line of at most this width."""
    line = line.split("\n", 1)[0].expandtabs()
    if width is None or cells(line) <= width:
        return line
    # A character takes a column at least.
    line = line[: max(1, width - 1)]
    while len(line) > 1 and cells(line) > width - 1:
        line = line[:-1]
    return f"{line}…"
