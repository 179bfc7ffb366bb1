"""Lines of the logs of several hosts, each with its host and what printed it."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_cluster.features.logs.lines import Line
from vllm_cluster.kernel.terminal.output import END, Style, documents, encoded, out
from vllm_cluster.kernel.terminal.printable import ESCAPES, wants_color
from vllm_cluster.kernel.text import printable

# Those that can be read on black and on white.
_COLOURS = (36, 32, 35, 33, 34, 96, 92, 95, 93, 94)
_SOURCE_WIDTH = 6
# Characters that are put together at once: each may become four, of four bytes.
PORTION = 128 << 10
# Of a line beside its text: a hundred thousand empty ones are not one text either.
BESIDE = 64
# A host may make up any number of ranks.
MAX_ORIGINS = 4096
# The host of a line, what printed it, its rank and its replica.
_Origin = tuple[str, str, int | None, int | None]


class LogWriter:
    """Writes lines on standard output; on a terminal each host has its colour."""

    def __init__(self, hosts: Sequence[str], *, as_json: bool, color: str) -> None:
        self._width, self._source_width = max(map(len, hosts), default=0), _SOURCE_WIDTH
        self._colours = dict(zip(hosts, _COLOURS * (len(hosts) // len(_COLOURS) + 1), strict=False))
        self._color = wants_color(color, stdout=True)
        self._prefixes: dict[_Origin, Style] = {}
        self._ends: dict[_Origin, str] = {}
        self._as_json = as_json

    def write(self, lines: Sequence[Line]) -> None:
        """Write lines, at once."""
        begin = size = 0
        for end, line in enumerate(lines, 1):
            size += len(line.text) + BESIDE
            if size > PORTION or end == len(lines):
                self._write(lines[begin:end])
                begin, size = end, 0

    def _write(self, lines: Sequence[Line]) -> None:
        if max(len(self._ends), len(self._prefixes)) > MAX_ORIGINS:
            self._ends.clear()
            self._prefixes.clear()
        if self._as_json:
            documents(map(self._as_row, lines))
        else:
            out(*(part for line in lines for part in self._as_text(line)), end="")

    def _as_row(self, line: Line) -> str:
        """As JSON; what is the same of thousands of lines is encoded once, which makes a line twice as fast."""
        at, host, source, text, rank, replica = line
        end = self._ends.get((host, source, rank, replica))
        if end is None:
            row = {"host": host, "source": source, "rank": rank, "replica": replica}
            end = self._ends[host, source, rank, replica] = encoded(row).removeprefix("{")
        return f'{{"v": 1, "time": {round(at / 1e9, 6)!r}, "event": "log", "message": {encoded(text)}, {end}'

    def _as_text(self, line: Line) -> Sequence[str]:
        _, host, source, text, rank, replica = line
        prefix = self._prefixes.get((host, source, rank, replica)) or self._prefix((host, source, rank, replica))
        return prefix, text if text.isprintable() else _shown(text), END

    def _prefix(self, origin: _Origin) -> Style:
        host, source, rank, replica = origin
        name = source if rank is None else f"rank {rank}"
        if replica is not None:
            name = f"replica {replica} {name}"
            if len(name) > self._source_width:
                self._source_width = len(name)
                self._prefixes.clear()
        plain = f"{printable(host):<{self._width}} {printable(name):<{self._source_width}} | "
        prefix = Style(f"\x1b[{self._colours.get(host, 37)}m{plain}\x1b[0m" if self._color else plain)
        self._prefixes[origin] = prefix
        return prefix


def _shown(text: str) -> str:
    """A line without what could steer a terminal: colours go, the rest is shown as escapes."""
    return printable(ESCAPES.sub("", text).replace("\t", "    "))
