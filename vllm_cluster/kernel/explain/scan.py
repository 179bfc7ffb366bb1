"""Reads one log, however long, in bounded memory: what it shows, and where."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from vllm_cluster.kernel.explain import progress
from vllm_cluster.kernel.explain.catalogue import NEEDLES, LineKind, LogPattern, kind_of
from vllm_cluster.kernel.explain.evidence import RECENT, LogScan
from vllm_cluster.kernel.explain.frame import Judged, Nearby, broken_off
from vllm_cluster.kernel.explain.log_line import (
    DAY,
    DIGIT_MATTERS,
    MAX_LINE,
    UNDATED,
    LogLine,
    latest,
    learn_newest,
    parse_line,
    without_digits,
)
from vllm_cluster.kernel.explain.prefix import learn, section
from vllm_cluster.kernel.explain.stream import HostStream
from vllm_cluster.kernel.explain.words import ZEROED, DistinctWords, Needle, needle

NEARLY_A_YEAR = 363 * DAY
ABOVE = 8192  # characters above a line that are looked through for its time
LEARNT = 64 << 10  # bytes at the beginning of a file that show its prefixes and its year
# Of all logs of a call: of 1000 hosts 300 files took 1.2 GB, one 220 MB. Each takes this much, or what is kept of it.
MAX_STREAMS, STREAM_BYTES = 512, 32 << 10
# The name of all hosts for which there was no room: no host has it.
_OTHERS = "\n"
# Each line with a time has this.
_CLOCK = re.compile(rb":\d\d:\d\d")
# A line break is found faster than the beginning of a line.
_HEADING = re.compile(rb"\n(?:==|##|---|\*\*\*)[^\n]{1,160}(?=\n|$)")
_COLOUR = re.compile(rb"\x1b\[[0-9;?]{0,20}[ -/]{0,4}[@-~]")
# Of lines with only a word of failure those of a calm level do not count.
_CALM = re.compile(rb"\b(?:DEBUG|INFO|WARNING)\b")
_FAILED = tuple(
    needle(form.encode(), inside=True)
    for word in (*progress.FAILED, *progress.EXIT)
    for form in dict.fromkeys((word, word.capitalize(), word.upper()))
)
# With one of these in a line its words can be others than its bytes: a needle may be there that its bytes do not hold.
_REWRITTEN = (b"\\u", b"\\/", b"\x1b", b"^[[", b"0m", b"[repeated")
_RATES, _ENGINE = progress.RATES.encode(), re.compile(progress.ENGINE.pattern.encode())
_PROGRESS = tuple(mark.encode() for mark in progress.PROGRESS)
_MATTERS, _DIGIT = DIGIT_MATTERS.encode(), re.compile(rb"\d")
# By the word by which they are found: keys, and their numbers in NEEDLES.
_Anchors = Mapping[bytes, Sequence[tuple[bytes, int]]]


@dataclass(frozen=True)
class LogSource:
    """A log: `parts` are pieces of it, each with the number of its first line, whole lines as far as possible.

    `newest` is when it was last written, in seconds since 1970.
    """

    name: str
    parts: Iterable[tuple[int, bytes]]
    host: str = ""
    newest: float = UNDATED


@dataclass
class HostRoom:
    """What may be kept of further hosts, in bytes: once it is used up, those that were not seen before are as one."""

    left: int = MAX_STREAMS * STREAM_BYTES


def scan_all(sources: Iterable[LogSource], tick: Callable[[int], None] = lambda _: None) -> list[LogScan]:
    """Read logs to their ends, within one bound for all."""
    room = HostRoom()
    return [scan(source, tick, room) for source in sources]


def scan(source: LogSource, tick: Callable[[int], None] = lambda _: None, room: HostRoom | None = None) -> LogScan:
    """Read a log to its end; `tick` gets the bytes of each piece."""
    seen = LogScan(source.name)
    first, rest = _beginning(source.parts)
    sample = first[:LEARNT].decode("utf-8", "replace").splitlines()
    file = _LogFile(source, learn_newest(sample, source.newest), learn(sample), seen, room or HostRoom())
    for number, part in rest:
        file.read(number, part)
        seen.size += len(part)
        seen.lines = number + part.count(b"\n") - part.endswith(b"\n")
        tick(len(part))
    file.finish()
    return seen


def _beginning(parts: Iterable[tuple[int, bytes]]) -> tuple[bytes, Iterable[tuple[int, bytes]]]:
    """The first bytes of a log, and all of it."""
    pieces, all_parts, size = [], iter(parts), 0
    for number, part in all_parts:
        pieces.append((number, part))
        size += len(part)
        if size >= LEARNT:
            break
    return b"".join(part for _, part in pieces), chain(pieces, all_parts)


def candidate_lines(number: int, part: bytes, *, steady: bool = True) -> Iterator[tuple[int, bytes, Nearby]]:
    """The lines that may matter: number, text, and what is near it.

    What a piece can hold is decided by its distinct words, which lines are looked at by one word of each needle, and
    what a line is once for all of its form: those that differ in digits only. It is not `steady` where a digit
    shows whose line it is.
    """
    forms = part.translate(ZEROED).split(b"\n")
    often = Counter(forms)
    distinct = list(often)
    text = b"\n".join(distinct)
    words = DistinctWords(text)
    needles = words.possible(NEEDLES)
    signs = tuple(known for one in needles.values() for known in NEEDLES[one])
    anchors, failing = (
        words.anchors(there) for there in (_there(text, needles), _there(text, words.possible(_FAILED)))
    )
    if not (anchors or failing):
        return
    look = _PieceKeys(text, anchors, failing, signs)
    # What is kept for a form pays with its second line.
    looked = {
        distinct[at]: look.at_form(distinct[at], own) if often[distinct[at]] > 1 else own
        for at, own in words.lines_with((*anchors, *failing))
    }
    end = -1
    for at, (form, found) in enumerate(zip(forms, map(looked.get, forms), strict=True), number):
        start, end = end + 1, end + 1 + len(form)
        if not found:
            continue
        raw, judged, single = part[start:end], None, False
        if isinstance(found, _JudgedForm):
            kind, judged = found.kind, found.judged if steady else None
        elif at_line := look.at_line(raw, found):
            raw, kind = at_line
            single = often[form] == 1
        else:
            continue
        yield at, raw, Nearby(part, start, end, signs, kind, judged, single)


class _JudgedForm(NamedTuple):
    """What all lines are that differ in digits only: `judged` is for what they are found to be, if that is the same."""

    kind: LineKind
    judged: list[Judged] | None


class _PieceKeys:
    """What the lines of a piece are looked at for: keys by their words."""

    def __init__(self, text: bytes, anchors: _Anchors, failing: _Anchors, signs: tuple[LogPattern, ...]) -> None:
        self._anchors, self._failing = anchors, failing
        # In JSON a quotation mark has a backslash.
        self._quoted = b'\\"' in text
        self._rewritten, self._every = [mark for mark in _REWRITTEN if mark in text], LineKind(signs)
        self._digits = {
            word: digits
            for word, pairs in anchors.items()
            if (digits := [key.translate(ZEROED) for key, _ in pairs if _DIGIT.search(key)])
        }

    def at_form(self, form: bytes, own: frozenset[bytes]) -> _JudgedForm | frozenset[bytes] | None:
        """What all lines of a form are; its words, where each must be looked at by itself."""
        digits = self._digits and [key for word in own for key in self._digits.get(word, ())]
        if len(form) > MAX_LINE or (digits and any(map(self._unquoted(form).__contains__, digits))):
            return own
        found = self.at_line(form, own)
        return found and _JudgedForm(found[1], [] if found[1].steady and _MATTERS not in form else None)

    def at_line(self, raw: bytes, own: frozenset[bytes]) -> tuple[bytes, LineKind] | None:
        """What a line is, and its text: of an endless one, what is around the first key."""
        text, anchors, failing = self._unquoted(raw), self._anchors, self._failing
        found = [pair for word in own if word in anchors for pair in anchors[word] if pair[0] in text]
        failed = [] if found else [key for word in own for key, _ in failing.get(word, ()) if key in text]
        if not (found or failed) or (failed and _CALM.search(text, 0, text.find(min(failed)))):
            return None
        if len(raw) > MAX_LINE:
            raw = _around(raw, [key for key, _ in found] or failed)
        if self._rewritten and any(map(raw.__contains__, self._rewritten)):
            return raw, self._every
        return raw, kind_of(tuple([number for _, number in found]))

    def _unquoted(self, text: bytes) -> bytes:
        return text.replace(b'\\"', b'"') if self._quoted else text


def _there(text: bytes, needles: Mapping[int, Needle]) -> dict[int, Needle]:
    """Those of the needles that the forms of a piece can hold as they are, or as JSON writes them."""
    escaped = b'\\"' in text
    return {
        at: one
        for at, one in needles.items()
        if (key := one.text.translate(ZEROED)) in text or (escaped and key.replace(b'"', b'\\"') in text)
    }


def _around(raw: bytes, texts: Iterable[bytes]) -> bytes:
    at = raw.find(min(text if text in raw else text.replace(b'"', b'\\"') for text in texts))
    begin = max(0, min(at - MAX_LINE // 4, len(raw) - MAX_LINE))
    return raw[begin : begin + MAX_LINE]


def _sections(number: int, part: bytes) -> Iterator[tuple[int, str]]:
    """The headings between the logs of several hosts."""
    before, line = 0, number
    for found in _HEADING.finditer(b"\n" + part):
        if name := section(found[0].decode("utf-8", "replace")):
            line += part.count(b"\n", before, found.start())
            before = found.start()
            yield line, name


def _answers(part: bytes) -> list[int]:
    """Where the last lines are by which the server has answered."""
    found = _worked(part)
    for mark in progress.STRONG:
        of_mark, at = 0, part.rfind(mark)
        while at >= 0 and of_mark < RECENT:
            if progress.ANSWERED.match(part, at):
                found += [at] if of_mark or mark is not progress.STEP else []
                of_mark += 1
            at = part.rfind(mark, 0, at)
    return sorted(found)[-RECENT:]


def _numbered(number: int, part: bytes, places: Iterable[int]) -> Iterator[tuple[int, int]]:
    """These places in their order, each with the number of its line."""
    before = 0
    for at in places:
        number, before = number + part.count(b"\n", before, at), at
        yield number, at


def _worked(part: bytes) -> list[int]:
    """Where an engine last reported before it made tokens: a report is of the time since the one before it.

    Of several engines one can work while another is stuck: then none of it counts.
    """
    found: list[int] = []
    engines: set[bytes] = set()
    worked, at = False, part.rfind(_RATES)
    while at >= 0 and len(found) < RECENT:
        start = part.rfind(b"\n", 0, at) + 1
        named = _ENGINE.search(part, start, at)
        engines.add(named[0] if named else b"")
        found += [at] if worked else []
        worked = not part.startswith(b" 0.0 ", at + len(_RATES))
        at = part.rfind(_RATES, 0, start)
    return found if len(engines) == 1 else []


class _LogFile:
    """One file, which may hold the logs of several hosts: each host, and each section, is judged by itself."""

    def __init__(self, source: LogSource, newest: float, names: frozenset[str], seen: LogScan, room: HostRoom) -> None:
        self._source, self._newest, self._names, self._first = source, newest, names, seen
        self._latest = latest(source.newest)
        self._room, self._steady = room, without_digits(names)
        self._sections: list[tuple[int, str]] = [(0, "")]  # where the last ones begin
        self._streams: dict[str, HostStream] = {}
        self._taken: dict[str, int] = {}  # of the room, by each further one
        self._last = (0, b"")  # the last piece, with the number of its first line

    def read(self, number: int, part: bytes) -> None:
        """Look at the lines of one piece that may matter, and at what shows that work continued."""
        if b"\x1b" in part:
            part = _COLOUR.sub(b"", part)
        self._sections = [*self._sections[-1:], *_sections(number, part)]
        self._last = number, part
        answers, before = list(_numbered(number, part, _answers(part))), 0
        for at, raw, nearby in candidate_lines(number, part, steady=self._steady):
            # The year of what follows, by the last line above that begins with a date.
            if (dated := part.rfind(b"\n20", before, nearby.start)) >= 0:
                self._note(self._parsed(part, dated + 1), at)
            before = nearby.start
            if answers and answers[0][1] < nearby.start:
                passed = bisect_left(answers, nearby.start, key=itemgetter(1))
                self._answered(part, answers[:passed])
                del answers[:passed]
            parsed = self._parse(raw, single=nearby.single)
            self._note(parsed, at).take(at, parsed, nearby)
        self._answered(part, answers)
        self._settle(number, part)

    def finish(self) -> None:
        """Complete what was kept of each host."""
        number, part = self._last
        lines = [(line, self._parsed(part, at)) for line, at in _numbered(number, part, broken_off(part, self._names))]
        if lines:
            self._stream(lines[0][1], lines[0][0]).break_off(lines)
        for stream in self._streams.values():
            stream.finish()

    def _note(self, parsed: LogLine, at: int) -> HostStream:
        """Keep what the time of a line shows about those below it, and return the host's stream."""
        if parsed.dated and parsed.time is not None:
            # What follows without a year is of the year after this line.
            self._newest = parsed.time + NEARLY_A_YEAR
        stream = self._stream(parsed, at)
        stream.note(at, parsed)
        return stream

    def _answered(self, part: bytes, places: Sequence[tuple[int, int]]) -> None:
        """Take the last of these answers of each host."""
        newest: dict[int, tuple[HostStream, int, LogLine, float | None]] = {}
        for line, at in places:
            parsed = self._parsed(part, at)
            stream = self._stream(parsed, line)
            if progress.READY in parsed.words:
                stream.ready()
            # Uvicorn's lines have no time: they are as old as the line above.
            dated = parsed if parsed.time is not None else self._above(part, at) or parsed
            if not stream.foreign(dated):
                newest[id(stream)] = (stream, line, parsed, dated.time)
        for stream, line, parsed, time in newest.values():
            stream.answered(stream.place(line, parsed, time))

    def _stream(self, parsed: LogLine, line: int) -> HostStream:
        name = "" if self._source.host else parsed.host or self._section(line)
        if name not in self._streams and self._streams and self._room.left < STREAM_BYTES:
            name = _OTHERS
        return self._streams.get(name) or self._new_stream(name)

    def _section(self, line: int) -> str:
        begun = bisect_right(self._sections, line, key=itemgetter(0)) if len(self._sections) > 1 else 1
        return self._sections[max(begun - 1, 0)][1]

    def _new_stream(self, name: str) -> HostStream:
        seen = self._first
        if self._streams:
            self._take(name, STREAM_BYTES)
            seen = LogScan(self._source.name)
            self._first.streams.append(seen)
        seen.host = self._source.host or ("" if name == _OTHERS else name)
        return self._streams.setdefault(name, HostStream(seen, self._names))

    def _take(self, name: str, size: int) -> None:
        """Count what is kept of a further host."""
        size, before = max(size, STREAM_BYTES), self._taken.get(name, 0)
        self._taken[name] = size
        self._room.left -= size - before

    def _settle(self, number: int, part: bytes) -> None:
        """After a piece: its last line, and of each host the last signs of progress."""
        last, line = self._at(number, part, len(part.rstrip()))
        above = self._above(part, len(part.rstrip()))
        self._first.last = self._stream(last, line).place(line, last, above.time if above else None)
        first, *further = self._streams.items()
        first[1].settle()
        for name, stream in further:
            self._take(name, stream.settle(few=self._room.left < STREAM_BYTES))
        # Each mark that is not there costs a search through the whole piece.
        marks = _PROGRESS if any(stream.waiting for stream in self._streams.values()) else ()
        for at in sorted(at for mark in marks if (at := part.rfind(mark)) >= 0):
            parsed, line = self._at(number, part, at)
            stream = self._stream(parsed, line)
            stream.work_continued(stream.place(line, parsed))

    def _at(self, number: int, part: bytes, at: int) -> tuple[LogLine, int]:
        return self._parsed(part, at), number + part.count(b"\n", 0, at)

    def _parsed(self, part: bytes, at: int) -> LogLine:
        start = part.rfind(b"\n", 0, at) + 1
        raw = part[start : start + MAX_LINE].split(b"\n", 1)[0]
        return self._parse(raw)

    def _parse(self, raw: bytes, *, single: bool = False) -> LogLine:
        parsed = parse_line(raw, self._newest, self._names, single=single)
        late = parsed.time is not None and parsed.time > self._latest
        return parsed._replace(time=None, dated=False) if late else parsed

    def _above(self, part: bytes, at: int) -> LogLine | None:
        """The nearest line above that has a time."""
        start = part.rfind(b"\n", 0, at) + 1
        above = reversed(part[max(0, start - ABOVE) : start].split(b"\n"))
        lines = (self._parse(raw) for raw in above if _CLOCK.search(raw))
        return next((line for line in lines if line.time is not None), None)
