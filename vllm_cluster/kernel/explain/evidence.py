"""What one log shows: places of lines, exceptions, matches of signs, and all of a log together."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, islice
from sys import getsizeof
from typing import NamedTuple

from vllm_cluster.kernel.explain.catalogue import LogPattern
from vllm_cluster.kernel.explain.communicators import Communicators
from vllm_cluster.kernel.explain.frame import Frame
from vllm_cluster.kernel.explain.log_line import LogLine
from vllm_cluster.kernel.explain.ranks import Ranks

LAST_TROUBLE = 12
_NUMBERS = re.compile(r"\d+")
LINE_BYTES, MATCH_BYTES = 700, 2000  # that are kept of a line and of a sign, beside their texts
RECENT, FEW = 64, 4  # places of one sign, the last ones; and where there is little room
STOPS = 100  # times at which vLLM was stopped by a request
FORMS, FORM = 256, 56  # errors that are over, and characters by which one is known again
FAILED = 256  # times at which something failed, each a second from the one before


@dataclass(frozen=True)
class LogPosition:
    """A line, its position in the log and its source; secrets are redacted."""

    source: str
    line: int
    text: str
    process: str = ""
    host: str = ""
    time: float | None = None


def form_of(words: str) -> str:
    """The beginning of a line without its numbers: errors of one kind have the same."""
    return _NUMBERS.sub("0", words)[:FORM]


def precedes(place: LogPosition, other: LogPosition) -> bool:
    """Whether a line is above another of its log, or older than one of another log."""
    if (place.source, place.host) == (other.source, other.host):
        return place.line < other.line
    return place.time is not None and other.time is not None and place.time < other.time


@dataclass(frozen=True)
class Raised:
    """An exception that no failure explains, the lines below that continue it, and where it was raised.

    `root` is the first exception of its chain, where it is not that itself.
    """

    line: LogPosition
    more: tuple[str, ...]
    frame: Frame | None
    root: LogPosition | None = None


class ErrorLine(NamedTuple):
    """A line of an error as it was read, and the time of the line above: most are never shown, and cost little so."""

    number: int
    parsed: LogLine
    above: float | None

    @property
    def time(self) -> float | None:
        """Its own time; without one it is as old as the line above it that has."""
        return self.above if self.parsed.time is None else self.parsed.time


@dataclass
class SignMatch:
    """A sign that was found: the first place, how often, the lines below it, and the last places.

    The same words can come of a planned stop and, later, of a failure: which places count is decided place by place.
    """

    known: LogPattern
    first: LogPosition
    last: LogPosition
    count: int = 0
    more: tuple[str, ...] = ()
    evidence: LogPosition | None = None
    recent: deque[LogPosition] = field(default_factory=lambda: deque(maxlen=RECENT))
    lines: deque[ErrorLine] = field(default_factory=lambda: deque(maxlen=RECENT))  # `recent`, while the log is read

    @property
    def number(self) -> int:
        """Of the last line."""
        return self.lines[-1].number if self.lines else self.last.line


def held(seen: LogScan, lines: Iterable[ErrorLine], *, few: bool) -> int:
    """About how many bytes are kept of a log while it is read: of its signs, and of these lines.

    With `few` only the last places of each sign are kept from here on.
    """
    hits = [*seen.hits.values(), *seen.before.values(), *seen.past]
    for hit in hits if few else ():
        hit.lines = deque(islice(hit.lines, max(0, len(hit.lines) - FEW), None), maxlen=RECENT)
    # Of each line that is kept there is another one at the end, to be shown.
    texts = (LINE_BYTES + 2 * getsizeof(line.parsed.words) for line in chain(lines, *(hit.lines for hit in hits)))
    return MATCH_BYTES * len(hits) + sum(texts)


@dataclass
class LogScan:
    """What one log shows: the hits of its last run; of runs before, what a host suffered from, and failures by slug.

    `strange` are the first lines of trouble of the last run that no failure explains, `last` is its last line;
    `quiet` are the first lines in which programs without levels report a failure, `murmurs` those that may.
    `stopped` is where vLLM was stopped by a request and not started since; `stops` are the times of earlier such stops,
    each with that of the start after it. `asked` is where a signal asked vLLM to end before anything failed.
    `failed` are times at which anything failed, in all runs; `past` is what was seen before the last start, `overcome`
    are the first lines of unknown trouble that a later start or answer has overcome. `follows`: it was started as a
    part of a server that answers elsewhere; `own`: by vcluster.
    `addresses` are those at which its ranks meet, and of others that its failures name. `endings` is where, by process,
    vLLM began to end its own processes.
    `outlived` are the forms of unknown trouble after which the server has answered.
    `begin` and `end` are its first and last lines that were looked at. `streams` is what the same file holds of other
    hosts.
    """

    name: str
    host: str = ""
    begin: int = 0
    end: int = 0
    lines: int = 0
    size: int = 0
    hits: dict[LogPattern, SignMatch] = field(default_factory=dict)
    before: dict[LogPattern, SignMatch] = field(default_factory=dict)
    earlier: Counter[str] = field(default_factory=Counter)
    trouble: deque[LogPosition] = field(default_factory=lambda: deque(maxlen=LAST_TROUBLE))
    strange: list[LogPosition] = field(default_factory=list)
    quiet: list[LogPosition] = field(default_factory=list)
    murmurs: list[LogPosition] = field(default_factory=list)
    raised: list[Raised] = field(default_factory=list)
    last: LogPosition | None = None
    stopped: LogPosition | None = None
    asked: LogPosition | None = None
    stops: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=STOPS))
    failed: deque[float] = field(default_factory=lambda: deque(maxlen=FAILED))
    overcome: list[LogPosition] = field(default_factory=list)
    past: list[SignMatch] = field(default_factory=list)
    follows: bool = False
    own: bool = False
    started: LogPosition | None = None
    alive: LogPosition | None = None
    streams: list[LogScan] = field(default_factory=list)
    addresses: set[str] = field(default_factory=set)
    endings: dict[str, LogPosition] = field(default_factory=dict)
    communicators: Communicators[LogPosition] = field(default_factory=Communicators)
    ranks: Ranks = field(default_factory=Ranks)
    outlived: set[str] = field(default_factory=set)

    def outlive(self, words: Iterable[str]) -> None:
        """Keep what the server has answered after: when it comes again, it need not be why a log ends."""
        if len(self.outlived) < FORMS:
            self.outlived.update(map(form_of, (*words, *(place.text for place in (*self.strange, *self.murmurs)))))
