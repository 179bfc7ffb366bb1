"""What one log shows, line by line: signs, starts, stops, and whether work continues."""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache

from vllm_cluster.kernel.explain import progress
from vllm_cluster.kernel.explain.catalogue import SIGNS, LogPattern
from vllm_cluster.kernel.explain.communicators import WORDS, Communicators
from vllm_cluster.kernel.explain.failure import SignKind
from vllm_cluster.kernel.explain.frame import Frame, Nearby, is_chained, is_exception
from vllm_cluster.kernel.explain.log_line import DAY, LogLine, parse_line
from vllm_cluster.kernel.text import redact

SHOWN = 400  # characters of a line that are kept
WHO = 120
MORE_LINES = 3
INDENTED = b"]   "  # where a logger's prefix ends, before an indented line
BANNER = 40  # lines of one start that all announce it
LAST_TROUBLE = 12
FIRST_STRANGE = 3
MAX_RAISED = 16  # exceptions of one log that no failure explains: the first half of them, and the last ones
RECENT = 64  # places of one sign, the last ones
STOPS = 100  # times at which vLLM was stopped by a request
DISORDER = 60.0  # seconds by which processes of one host may write out of order
_CACHE = 4096
# An engine that has requests is stuck when it reports no token so often, or for so many seconds.
IDLE_REPORTS = 3
IDLE_SECONDS = 60.0
MAX_ENGINES = 1024
STUCK = LogPattern("rank-stuck", progress.RATES, None, SignKind.SYMPTOM)


@dataclass(frozen=True)
class LogPosition:
    """A line, its position in the log and its source; secrets are redacted."""

    source: str
    line: int
    text: str
    process: str = ""
    host: str = ""
    time: float | None = None


@dataclass(frozen=True)
class Raised:
    """An exception that no failure explains, the lines below that continue it, and where it was raised."""

    line: LogPosition
    more: tuple[str, ...]
    frame: Frame | None


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

    `strange` are the first lines of trouble of the last run that no failure explains, `last` is its last line;
    `quiet` are the first lines in which programs without levels report a failure.
    `stopped` is where vLLM was stopped by a request and not started since; `stops` are the times of earlier such stops,
    each with that of the start after it. `streams` is what the same file holds of other hosts.
    """

    name: str
    lines: int = 0
    size: int = 0
    hits: dict[LogPattern, SignMatch] = field(default_factory=dict)
    before: dict[LogPattern, SignMatch] = field(default_factory=dict)
    earlier: Counter[str] = field(default_factory=Counter)
    trouble: deque[LogPosition] = field(default_factory=lambda: deque(maxlen=LAST_TROUBLE))
    strange: list[LogPosition] = field(default_factory=list)
    quiet: list[LogPosition] = field(default_factory=list)
    raised: list[Raised] = field(default_factory=list)
    last: LogPosition | None = None
    stopped: LogPosition | None = None
    stops: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=STOPS))
    started: LogPosition | None = None
    alive: LogPosition | None = None
    streams: list[LogScan] = field(default_factory=list)
    communicators: Communicators[LogPosition] = field(default_factory=Communicators)


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


class HostStream:
    """The lines of one host in one file, and what must be remembered from line to line."""

    def __init__(self, seen: LogScan, names: frozenset[str], host: str) -> None:
        self.seen, self._names, self._host = seen, names, host
        self._time: float | None = None
        self._latest: float | None = None
        self._dated = False
        self._leaves = False
        self._idle: dict[str, list[LogPosition]] = {}  # reports in a row of an engine with requests and no tokens
        self._chained: set[str] = set()  # processes whose next exception replaces the one before it
        self.waiting: list[SignMatch] = []  # look-alikes that wait for work to continue

    def take(self, number: int, parsed: LogLine, nearby: Nearby) -> None:
        """Look at one line that may matter."""
        seen, foreign = self.seen, self.foreign(parsed)
        self._time = self._time if parsed.time is None else parsed.time
        if parsed.time is not None and not foreign:
            self._latest, self._dated = parsed.time, parsed.dated
        if progress.OWN_START in parsed.words or (not foreign and any(mark in parsed.words for mark in progress.START)):
            self._begin(self.place(number, parsed))
        elif progress.OWN_STOP in parsed.words:
            seen.stopped = self.place(number, parsed)
        elif not foreign and any(mark in parsed.words for mark in progress.GROUP_START):
            self._forget(group=True)
        # At DEBUG vLLM reports attempts that it gives up as part of a normal start.
        found, trouble = classify(parsed.words) if parsed.level != "DEBUG" else ((), False)
        found = tuple(known for known in found if known.who is None or known.who.search(parsed.who))
        self._leaves = self._leaves or progress.LEAVES in parsed.words
        if progress.RATES in parsed.words:
            self._rates(number, parsed)
        if WORDS in parsed.words:
            seen.communicators.take(parsed.words, self.place(number, parsed))
        if self._leaves and parsed.words.startswith("[W"):
            return
        # Of a traceback only its ends count.
        loud = trouble or (parsed.loud and INDENTED not in nearby.text)
        if is_chained(parsed.words) and len(self._chained) < MAX_RAISED:
            self._chained.add(parsed.who)
        elif found or loud:
            self._keep(number, parsed, nearby, found, trouble)
        elif (
            not parsed.level
            and len(seen.quiet) < FIRST_STRANGE
            and any(w in parsed.words for w in progress.QUIET_WORDS)
        ):
            seen.quiet.append(self.place(number, parsed))

    def _rates(self, number: int, parsed: LogLine) -> None:
        """Count the reports of an engine that has requests and makes no token."""
        engine = found[0] if (found := progress.ENGINE.search(parsed.words)) else ""
        if not progress.IDLE.search(parsed.words):
            if self._idle.pop(engine, None) and not self._idle:
                self.seen.hits.pop(STUCK, None)
            return
        place = self.place(number, parsed)
        if len(self._idle) < MAX_ENGINES or engine in self._idle:
            self._idle[engine] = [*self._idle.get(engine, ())[:IDLE_REPORTS], place]
        first, *more = self._idle.get(engine, [place])
        if len(more) + 1 >= IDLE_REPORTS or (place.time or 0.0) - (first.time or math.inf) >= IDLE_SECONDS:
            hit = self.seen.hits.setdefault(STUCK, SignMatch(STUCK, first, place))
            hit.count, hit.last = hit.count + 1, place
            hit.recent.append(place)

    def _keep(self, number: int, parsed: LogLine, nearby: Nearby, found: tuple[LogPattern, ...], trouble: bool) -> None:
        """Keep a line with signs or of an error."""
        place = self.place(number, parsed)
        for known in found:
            self._add(_milder(known) if parsed.calm else known, place, parsed, nearby)
        harmless = any(known.kind is SignKind.HARMLESS for known in found)
        if (trouble or parsed.loud) and not parsed.calm and not harmless:
            self.seen.trouble.append(place)
            if trouble and not found and not parsed.words.startswith(progress.ANNOUNCED):
                self._unexplained(place, parsed, nearby)

    def _unexplained(self, place: LogPosition, parsed: LogLine, nearby: Nearby) -> None:
        """Keep a line of trouble that no failure explains, and of an exception where it was raised."""
        if len(self.seen.strange) < FIRST_STRANGE:
            self.seen.strange.append(place)
        raised, chained = self.seen.raised, parsed.who in self._chained
        if not is_exception(parsed.words):
            return
        self._chained.discard(parsed.who)
        before = next((at for at in reversed(range(len(raised))) if raised[at].line.process == place.process), None)
        if not (chained and before is not None) and any(one.line.text == place.text for one in raised):
            return
        one = Raised(place, self._continued(nearby.below, parsed), nearby.frame(parsed.who, self._names))
        if chained and before is not None:
            raised[before] = one
            return
        if len(raised) == MAX_RAISED:
            del raised[MAX_RAISED // 2]
        raised.append(one)

    def foreign(self, parsed: LogLine) -> bool:
        """Whether a line cannot be later than what is above it, though it is below it.

        It is older; or it has a date where what failed above it has no time at all, as a line of another log.
        """
        if parsed.time is None:
            return False
        if self._latest is None:
            return parsed.dated and bool(self.seen.hits or self.seen.trouble)
        return parsed.time < self._latest - (DISORDER if parsed.dated == self._dated else DAY)

    def place(self, number: int, parsed: LogLine, time: float | None = None) -> LogPosition:
        """A line as it is shown; without a time of its own it is as old as the one above it that has."""
        text = redact(parsed.words)[:SHOWN]
        known = next((at for at in (parsed.time, time, self._time) if at is not None), None)
        return LogPosition(self.seen.name, number, text, parsed.who[:WHO], self._host, known)

    def _add(self, known: LogPattern, place: LogPosition, parsed: LogLine, nearby: Nearby) -> None:
        hit = self.seen.hits.get(known)
        if hit is None:
            hit = self.seen.hits[known] = SignMatch(known, place, place, more=self._continued(nearby.below, parsed))
        hit.count, hit.last, hit.evidence = hit.count + parsed.times, place, None
        hit.recent.append(place)
        if known.kind is SignKind.HARMLESS and hit not in self.waiting:
            self.waiting.append(hit)

    def _continued(self, below: bytes, above: LogLine) -> tuple[str, ...]:
        """The lines right below that continue a line: a version mismatch lists the versions there."""
        lines = []
        for raw in below.split(b"\n")[:MORE_LINES]:
            parsed = parse_line(raw, names=self._names)
            # Loggers repeat their prefix; what continues a message is indented behind it.
            own = parsed.level == above.level and parsed.who == above.who and INDENTED in raw
            stamped = not own and (parsed.level or parsed.time)
            if not parsed.words or stamped or parsed.words.startswith(("File ", "Traceback", "^")):
                break
            lines.append(redact(parsed.words)[:SHOWN])
        return tuple(lines)

    def _begin(self, place: LogPosition) -> None:
        """A new run of vLLM: what was found belongs to the one before it."""
        seen = self.seen
        new = seen.started is None or place.line - seen.started.line > BANNER
        if new or progress.OWN_START in place.text:
            self._forget(group=False)
        if seen.stopped and seen.stopped.time and place.time:
            seen.stops.append((seen.stopped.time, place.time))
        seen.started, seen.alive, seen.stopped = place, None, None
        self._leaves = False
        self._idle.clear()

    def _forget(self, *, group: bool) -> None:
        """Put aside what an earlier run was about; a host's own trouble may still be why this one fails."""
        seen = self.seen
        for known in [known for known in seen.hits if (known.host or not group) and known.kind is not SignKind.FACT]:
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
            seen.raised.clear()
            seen.quiet.clear()
            self.waiting.clear()
            seen.communicators.clear()

    def answered(self, place: LogPosition) -> None:
        """Take a line by which the server has answered."""
        self.seen.alive = place
        self.seen.strange.clear()
        self.seen.raised.clear()
        self.seen.quiet.clear()
        self.seen.communicators.clear()
        self.work_continued(place)

    def work_continued(self, place: LogPosition) -> None:
        """Take the last sign of progress in a piece: what only looked like a failure before it is none."""
        for hit in self.waiting[:]:
            if place.line > hit.last.line:
                hit.evidence = place
                self.waiting.remove(hit)
