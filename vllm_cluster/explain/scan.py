"""Reads one log, however long, in bounded memory: what it shows, and where."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache

from vllm_cluster.explain import progress
from vllm_cluster.explain.catalogue import KEYS, SIGNS, LogPattern
from vllm_cluster.explain.failure import SignKind
from vllm_cluster.explain.log_line import MAX_LINE, UNDATED, LogLine, parse_line
from vllm_cluster.text import redact

SHOWN = 400  # characters of a line that are kept
WHO = 120
MORE_LINES = 3
BANNER = 40  # lines of one start that all announce it
LAST_TROUBLE = 12
FIRST_STRANGE = 3
ABOVE = 8192  # characters above a line that are looked through for its time
RECENT = 64  # places of one sign, the last ones
STOPS = 100  # times at which vLLM was stopped by a request
_CACHE = 4096
_PROGRESS = tuple(mark.encode() for mark in progress.PROGRESS)


@dataclass(frozen=True)
class LogSource:
    """A log: `parts` are pieces of it, each with the number of its first line, whole lines as far as possible.

    `newest` is when it was last written, in seconds since 1970.
    """

    name: str
    parts: Iterable[tuple[int, bytes]]
    host: str = ""
    newest: float = UNDATED


@dataclass(frozen=True)
class LogPosition:
    """A line, its position in the log and its source; secrets are redacted."""

    source: str
    line: int
    text: str
    process: str = ""
    host: str = ""
    time: float | None = None


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


@dataclass
class LogScan:
    """What one log shows: the hits of its last run; of runs before, what a host suffered from, and failures by slug.

    `strange` are the first lines of trouble of the last run that no failure explains, `last` is its last line.
    `stopped` is where vLLM was stopped by a request and not started since; `stops` are the times of earlier such stops,
    each with that of the start after it.
    """

    name: str
    lines: int = 0
    size: int = 0
    hits: dict[LogPattern, SignMatch] = field(default_factory=dict)
    before: dict[LogPattern, SignMatch] = field(default_factory=dict)
    earlier: Counter[str] = field(default_factory=Counter)
    trouble: deque[LogPosition] = field(default_factory=lambda: deque(maxlen=LAST_TROUBLE))
    strange: list[LogPosition] = field(default_factory=list)
    last: LogPosition | None = None
    stopped: LogPosition | None = None
    stops: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=STOPS))
    started: LogPosition | None = None
    alive: LogPosition | None = None


@lru_cache(_CACHE)
def classify(words: str) -> tuple[tuple[LogPattern, ...], bool]:
    """The signs that a line holds, and whether it reports a failure at all."""
    # A traceback quotes the statement above the message that it raised: `raise NoSpace("no space left")`.
    if words.startswith("raise "):
        return (), False
    # What Ray counts up as possible has not been seen.
    words = progress.POSSIBLE.split(words, maxsplit=1)[0]
    found = tuple(
        known for known in SIGNS if known.needle in words and (known.matches is None or known.matches.search(words))
    )
    # What is harmless in any case may quote the failure that it warns of: a limit of files, and `Too many open files`.
    calm = tuple(known for known in found if known.kind is SignKind.HARMLESS and not known.failure)
    return calm or found, bool(progress.TROUBLE.search(words))


@cache
def _milder(known: LogPattern) -> LogPattern:
    """What warns may be so; what ends a start is an error: a cause is then only what nothing louder explains."""
    return replace(known, kind=SignKind.BROAD) if known.kind is SignKind.CAUSE else known


def scan(source: LogSource, tick: Callable[[int], None] = lambda _: None) -> LogScan:
    """Read a log to its end; `tick` gets the bytes of each piece."""
    seen, state = LogScan(source.name), _State(source)
    for number, part in source.parts:
        for at, line, below in candidate_lines(number, part):
            state.take(seen, at, line, below)
        state.settle(seen, number, part)
        seen.size += len(part)
        seen.lines = number + part.count(b"\n") - part.endswith(b"\n")
        tick(len(part))
    return seen


def candidate_lines(number: int, part: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """The lines that hold one of the keys: number, text, and what follows.

    A search for a few short keys through a whole piece is ten times as fast as looking at line after line.
    """
    spans: dict[int, tuple[int, int]] = {}
    for key in KEYS:
        at = part.find(key)
        while at >= 0:
            start = part.rfind(b"\n", 0, at) + 1
            end = part.find(b"\n", at)
            end = len(part) if end < 0 else end
            # Of an endless line, what is around the first key.
            spans.setdefault(start, (max(start, min(at - MAX_LINE // 4, end - MAX_LINE)), end))
            at = part.find(key, end)
    before, line = 0, number
    for start in sorted(spans):
        line += part.count(b"\n", before, start)
        before = start
        begin, end = spans[start]
        yield line, part[begin : min(end, begin + MAX_LINE)], part[end + 1 : end + 1 + SHOWN]


class _State:
    """What must be remembered from line to line."""

    def __init__(self, source: LogSource) -> None:
        self._source = source
        self._time: float | None = None
        self._open: list[SignMatch] = []  # look-alikes that wait for work to continue

    def take(self, seen: LogScan, number: int, raw: bytes, below: bytes) -> None:
        """Look at one line that may matter."""
        parsed = parse_line(raw, self._source.newest)
        self._time = self._time if parsed.time is None else parsed.time
        if progress.OWN_START in parsed.words or any(mark in parsed.words for mark in progress.START):
            self._begin(seen, self._place(number, parsed))
        elif progress.OWN_STOP in parsed.words:
            seen.stopped = self._place(number, parsed)
        elif any(mark in parsed.words for mark in progress.GROUP_START):
            self._forget(seen, group=True)
        # At DEBUG vLLM reports attempts that it gives up as part of a normal start.
        found, trouble = classify(parsed.words) if parsed.level != "DEBUG" else ((), False)
        if not (found or trouble):
            return
        place = self._place(number, parsed)
        for known in found:
            self._add(seen, _milder(known) if parsed.calm else known, place, parsed.times, below)
        if trouble and not parsed.calm and not any(known.kind is SignKind.HARMLESS for known in found):
            seen.trouble.append(place)
            if not found and len(seen.strange) < FIRST_STRANGE and not parsed.words.startswith(progress.ANNOUNCED):
                seen.strange.append(place)

    def _place(self, number: int, parsed: LogLine) -> LogPosition:
        text = redact(parsed.words)[:SHOWN]
        time = self._time if parsed.time is None else parsed.time
        return LogPosition(self._source.name, number, text, parsed.who[:WHO], self._source.host, time)

    def _add(self, seen: LogScan, known: LogPattern, place: LogPosition, times: int, below: bytes) -> None:
        hit = seen.hits.get(known)
        if hit is None:
            hit = seen.hits[known] = SignMatch(known, place, place, more=self._continued(below))
        hit.count, hit.last, hit.evidence = hit.count + times, place, None
        hit.recent.append(place)
        if known.kind is SignKind.HARMLESS and hit not in self._open:
            self._open.append(hit)

    def _continued(self, below: bytes) -> tuple[str, ...]:
        """The lines right below that continue a line: a version mismatch lists the versions there."""
        lines = []
        for raw in below.split(b"\n")[:MORE_LINES]:
            parsed = parse_line(raw, self._source.newest)
            if not parsed.words or parsed.level or parsed.time or parsed.words.startswith(("File ", "Traceback", "^")):
                break
            lines.append(redact(parsed.words)[:SHOWN])
        return tuple(lines)

    def _begin(self, seen: LogScan, place: LogPosition) -> None:
        """A new run of vLLM: what was found belongs to the one before it."""
        new = seen.started is None or place.line - seen.started.line > BANNER
        if new or progress.OWN_START in place.text:
            self._forget(seen, group=False)
        if seen.stopped and seen.stopped.time and place.time:
            seen.stops.append((seen.stopped.time, place.time))
        seen.started, seen.alive, seen.stopped = place, None, None

    def _forget(self, seen: LogScan, *, group: bool) -> None:
        """Put aside what an earlier run was about; a host's own trouble may still be why this one fails."""
        for known in [known for known in seen.hits if known.host or not group]:
            hit = seen.hits.pop(known)
            # What ends by a request writes symptoms of its end.
            planned = known.kind is not SignKind.CAUSE and seen.stopped and hit.first.line > seen.stopped.line
            if known.kind <= SignKind.SYMPTOM and not planned:
                seen.earlier[known.failure] += 1
                # Not what only looks like one: a rank that was killed yesterday explains nothing.
                if known.host and known.kind is SignKind.CAUSE and not group:
                    seen.before.setdefault(known, hit)
        if group:
            seen.before.clear()
        else:
            seen.trouble.clear()
            seen.strange.clear()
            self._open.clear()

    def settle(self, seen: LogScan, number: int, part: bytes) -> None:
        """After a piece: its last line, the last sign of progress, and whether the server answers."""
        seen.last = self._at(number, part, len(part.rstrip()))
        answers = -1
        for found in progress.STRONG.finditer(part):
            answers = found.start()
        if answers >= 0:
            place = self._at(number, part, answers)
            if seen.started is None or place.line > seen.started.line:
                seen.alive = place
        if self._open:
            at = max(answers, *(part.rfind(mark) for mark in _PROGRESS))
            after = self._at(number, part, at) if at >= 0 else None
            for hit in self._open[:]:
                if after and after.line > hit.last.line:
                    hit.evidence = after
                    self._open.remove(hit)

    def _at(self, number: int, part: bytes, at: int) -> LogPosition:
        """A line of a piece; where it has no time, as old as the one above it that has."""
        start = part.rfind(b"\n", 0, at) + 1
        line = number + part.count(b"\n", 0, start)
        parsed = parse_line(part[start : start + MAX_LINE].split(b"\n", 1)[0], self._source.newest)
        place = self._place(line, parsed)
        above = reversed(part[max(0, start - ABOVE) : start].split(b"\n"))
        times = (parse_line(raw, self._source.newest).time for raw in above) if parsed.time is None else ()
        time = next((time for time in times if time is not None), place.time)
        return replace(place, time=time)
