"""A line of a log, parsed into time, source, level and text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import NamedTuple

from vllm_cluster.kernel.explain.prefix import find_prefix, unwrapped
from vllm_cluster.kernel.explain.words import ZEROED

MAX_LINE = 4096
DAY = 86400.0
# The last second of 1970: what has no date is of one year.
UNDATED = 365 * DAY - 1
YEAR, HALF_YEAR = 365.25 * DAY, 182 * DAY
END_OF_YEARS = 253402300799.0  # the last second that Python has a year for
NEAR = 31  # days between a dated line and one without a year that it dates
_HEAD = 400
# Month, day, hour, minute, second, and the digits of its fraction, if it has any.
_InYear = tuple[int, int, int, int, int, str | None]
# Pasted from a terminal, colours are without their escape character, or it is written with two.
_ANSI = re.compile(r"(?:\x1b|\^\[)\[[0-9;?]*[ -/]*[@-~]|\x1b[^\[]?|\[\d{1,2}(?:;\d{1,3}){0,4}m")
_WHO = re.compile(r"\s*(?:\((pid=\d{1,9}|[A-Za-z][\w.:-]{0,60}(?: [^()]{0,120})?)\)|\[(rank\d{1,5}|\w{1,20})\]:?) ?")
_REPEATED = re.compile(r" ?\[repeated (\d{1,9})x across cluster\](?: \(Ray deduplicates logs[^)]{0,400}\))?")
# Before 0.8 vLLM opened no bracket before the file.
_LEVEL = re.compile(
    r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) (?:\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})? )?\[?[^\[\] ]{1,120}:\d{1,6}\] ?"
)
# Ray's own lines: Python's with a tab, C++'s with a letter, and dumps of its state, full of words like "failed: 0".
_GROUP_LEVEL = re.compile(r"[\d-]{10} [\d:]{8},\d{3}\s([A-Z]+) |\[[\d-]{10} [\d:,]{12} ([A-Z]) |\[(state-dump)\]")
# Of programs that have no bracket: `WARNING: …`, `x.py:7: UserWarning: …`, `… - WARNING - …`, `level=warning`.
_WORD_LEVEL = re.compile(
    r"^\W{0,3}(debug|info|warn|notice)(?:ing)?\]?:(?=\s|\w+:)|^\S{1,300}:\d{1,6}: \w{0,40}(warn)ing: "
    r"|^[^\[{]{0,80} - (debug|info|warn)(?:ing)? - ",
    re.IGNORECASE,
)
# Of loggers of people's own: `time - name - ERROR - …`, `[time] [ERROR] [thread] [name] >>> …`, `time | ERROR | …`.
_OTHERS = re.compile(
    r"\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]?(?: - [\w.]{1,80} - | {0,2}\| {0,2}| \[)"
    # A launcher that calls all of a program's standard error so shows no level.
    r"(?:ERROR \| stderr \| ?|(ERROR|CRITICAL|FATAL)(?: - |\] (?:\[[\w.:-]{1,80}\] ){0,3}(?:>{3} ?)?"
    r"| {0,6}\| (?:[\w.<>]{1,80}:[\w.<>]{1,80}:\d{1,6} - )?))"
)
_KEY_LEVEL = re.compile(r"\blevel=\"?(debug|info|warn)", re.IGNORECASE)
# One of these is in each line that has such a level.
_LEVEL_WORDS = ("info", "warn", "debug", "notice")
# As a word of its own in brackets, where others write the name of a process.
_BRACKETED = {
    **{level: level for level in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "FATAL")},
    **{"WARN": "WARNING", "NOTICE": "INFO", "TRACE": "DEBUG"},
}
_WORD_LEVELS = {"debug": "DEBUG", "info": "INFO", "notice": "INFO", "warn": "WARNING"}
# A progress bar ends without a line break: what another thread, or a process that shares it, writes follows at once.
_BAR = re.compile(r"(?:[^|]{0,200}\d%\|[^|]{0,300}\| \d{1,12}/\d{1,12} \[[^\]]{3,60}\])+(?=\S)")
_BAR_ENDS = ("it/s]", "s/it]")
# What pytest puts before a line.
_TEST = "E   "
# What a line in JSON begins with.
_WRAPPED = ("{", f"{_TEST}{{")
_NCCL_HOST = re.compile(r"([\w.-]{1,80}):\d{1,9}:\d{1,9} \[\d{1,3}\] ")
_LEVELS = ("DEBUG ", "INFO ", "WARNING ", "ERROR ", "CRITICAL ")
_CLOCK = r"(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,9}))?"
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
_TIMES = tuple(
    re.compile(pattern)
    for pattern in (
        rf"(?P<y>\d{{4}})-(?P<mo>\d\d)-(?P<d>\d\d)[T ]{_CLOCK}",
        rf"\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<mo>\d\d)-(?P<d>\d\d) {_CLOCK}",
        rf"\[?(?:\w{{3}} )?(?P<name>[A-Z][a-z]{{2}}) +(?P<d>\d{{1,2}}) {_CLOCK}(?: (?P<y>\d{{4}}))?",
        # glog and torch write E1121, older torch E528 for the 28th of May.
        rf"\[?\b[DIWEF](?P<mo>\d\d??)(?P<d>\d\d) {_CLOCK}",
    )
)
# A search that begins with a fixed character takes a tenth of the time of the others, which are left out without it,
# and begin where it has found something.
_ANY_TIME, _ANY_YEAR = re.compile(r":\d\d:\d\d"), re.compile(r"-\d\d-\d\d[T ]\d\d:")
# vLLM's own, where a line begins with it: the others are not looked for in what it logs.
_OWN_TIME = re.compile(
    r"(?:\([A-Z]\w{1,60} pid=\d{1,9}\) ){0,3}(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) "
    rf"(?P<mo>\d\d)-(?P<d>\d\d) {_CLOCK}"
)
# Such a line as a whole, up to its text: most lines are of this form, and one pattern takes them apart.
_OWN_LINE = re.compile(
    r"((?:\([A-Z]\w{1,60} pid=\d{1,9}\) ){0,3})(DEBUG|INFO|WARNING|ERROR|CRITICAL) "
    r"(\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})?) \[[^\[\] ]{1,120}:\d{1,6}\] ?"
)
_PROCESS = re.compile(r"\(([^()]*)\) ")


class LogLine(NamedTuple):
    """The parts of a line. `time` is in seconds since 1970 as if every clock were UTC, None where the line has none.

    `host` is the name that a launcher or a collector has put before it.
    """

    time: float | None
    who: str
    words: str
    times: int = 1
    level: str = ""
    host: str = ""
    dated: bool = False  # its time has a year

    @property
    def loud(self) -> bool:
        """Whether its level is that of errors."""
        return self.level in ("ERROR", "CRITICAL", "FATAL", "E", "F", "C")

    @property
    def calm(self) -> bool:
        """Whether its level is below error."""
        return self.level in ("DEBUG", "INFO", "WARNING", "D", "I", "W", "state-dump")

    @property
    def informs(self) -> bool:
        """Whether its level is that of what works as it should."""
        return self.calm and self.level not in ("WARNING", "W")


# The constructor of a named tuple takes three times as long.
_line = partial(tuple.__new__, LogLine)
# Which digit one is does not matter to what takes a line apart, but for md5, which is not a host: lines that
# differ in digits only have their parts in the same places, which are looked for once.
DIGIT_MATTERS = "md0"
KEPT_FORMS = 2048


class _Clock(NamedTuple):
    """Where the time of a line is."""

    form: re.Pattern[str]
    stamp: slice
    fraction: slice | None = None


class _LineParts(NamedTuple):
    """Where the parts of a line are. `repeated` is a count, and what is cut out of the line for it."""

    clock: _Clock | None
    who: Sequence[slice]
    words: slice
    level: str
    host: slice | None = None
    relayed: bool = False
    repeated: tuple[slice, slice] | None = None


def parse_line(
    raw: bytes, newest: float = UNDATED, names: frozenset[str] = frozenset(), *, single: bool = False
) -> LogLine:
    """Take a line apart; `newest` is when its log was last written, for the many formats without a year.

    `names` are those that begin lines of this log, as `prefix.learn` finds them. `single`: no other line is expected
    that differs from it in digits only.
    """
    text = raw[:MAX_LINE].decode("utf-8", "replace").rstrip("\r\n").removesuffix("^M")
    if "0m" in text or "\x1b" in text or "^[[" in text:
        text = _ANSI.sub("", text)
    if (found := _OWN_LINE.match(text)) and "[repeated" not in text:
        # These are many, and one pattern is faster than what follows.
        who = found[1][1:-2].replace(") (", " ")
        return _line((_own_time(found[3], newest), who, text[found.end() :].strip(), 1, found[2], "", False))
    own, host = unwrapped(text.removeprefix(_TEST)) if text.startswith(_WRAPPED) else (text, "")
    form = None
    if not single and without_digits(names):
        form = _form_of(_zeroed(own), names, own is not text, bool(host))
    form = form or _take_apart(own, names, own is not text, bool(host))
    if own is text or form.relayed:
        time, dated = _time_at(form.clock, own, newest)
    else:
        time, dated = _time_at(_find_clock(text) if single else _clock_of(_zeroed(text[:_HEAD])), text, newest)
    who, times = " ".join([own[part] for part in form.who]), 1
    if form.host:
        host = own[form.host]
    elif host:
        who = f"{host} {who}" if who else host
    if form.repeated:
        number, cut = form.repeated
        times, own = int(own[number]), own[: cut.start] + own[cut.stop :]
    return _line((time, who, own[form.words], times, form.level, host, dated))


def _zeroed(text: str) -> bytes:
    return text.encode("utf-8", "replace").translate(ZEROED)


@lru_cache(16)
def without_digits(names: frozenset[str]) -> bool:
    """Whether no name has a digit: then lines that differ in digits only begin with the same ones."""
    return not any(map(str.isdigit, "".join(names)))


@lru_cache(KEPT_FORMS)
def _form_of(zeroed: bytes, names: frozenset[str], wrapped: bool, named: bool) -> _LineParts | None:
    text = zeroed.decode()
    return None if DIGIT_MATTERS in text else _take_apart(text, names, wrapped, named)


@lru_cache(KEPT_FORMS)
def _clock_of(zeroed: bytes) -> _Clock | None:
    return _find_clock(zeroed.decode())


def _take_apart(text: str, names: frozenset[str], wrapped: bool, named: bool) -> _LineParts:
    """Find the parts of a line. `wrapped`: it was in JSON, which has its time, and its host if it is `named`."""
    begin = 0 if wrapped else _past_bar(text, _past_test(text, 0))
    prefix = find_prefix(text, names, begin, named=named)
    clock = _find_clock(text, prefix.end if prefix.relayed else begin) if prefix.relayed or not wrapped else None
    at, who, bracketed = _past_test(text, prefix.end), [prefix.host] if prefix.host else [], ""
    if (own := _OWN_LINE.match(text, at)) and text.find("[repeated", at) < 0:
        return _own_form(own, clock, prefix.host)._replace(relayed=prefix.relayed)
    most = 5 if prefix.host or not named else 4
    # Each of these has a character without which it is not looked for.
    while len(who) < most and ((first := text[at : at + 1]) in "([" or first.isspace()):
        if not (found := _WHO.match(text, at)):
            break
        if level_of := _BRACKETED.get((found[2] or "").upper()):
            bracketed = level_of
        else:
            who.append(slice(*found.span(1 if found[1] else 2)))
        at = found.end()
        if text[at : at + 1] == "[" or text[at : at + 1].isdigit():
            at = _past_test(text, find_prefix(text, names, at).end)
    if text.find("] ", at) >= 0 and (nccl := _NCCL_HOST.match(text, at)):
        who.append(slice(*nccl.span(1)))
    repeated = None
    if text.find("[repeated", at) >= 0 and (found := _REPEATED.search(text, at)):
        repeated = slice(*found.span(1)), slice(*found.span())
        text = text[: found.start()] + text[found.end() :]
    words, level = _words_and_level(text, at)
    level = level or bracketed or _level_by_word(text[words])
    return _LineParts(clock, who, words, level, prefix.host, prefix.relayed, repeated)


def _past_bar(text: str, at: int) -> int:
    bar = _BAR.match(text, at) if any(map(text.__contains__, _BAR_ENDS)) else None
    return bar.end() if bar else at


def _past_test(text: str, at: int) -> int:
    return at + len(_TEST) if text.startswith(_TEST, at) else at


def _words_and_level(text: str, at: int) -> tuple[slice, str]:
    """Where the text of a line is, and the level that its logger has put before that."""
    level = _LEVEL.match(text, at) if text.startswith(_LEVELS, at) else None
    if level:
        at = level.end()
    elif text[at : at + 1] == "[" or text[at : at + 1].isdecimal():
        if level := _OTHERS.match(text, at):
            at = level.end()
        level = level or _GROUP_LEVEL.match(text, at)
    return _stripped(text, at), next(filter(None, level.groups()), "") if level else ""


def _stripped(text: str, at: int) -> slice:
    """What is behind this place, without the spaces around it."""
    rest = text[at:].lstrip()
    begin = len(text) - len(rest)
    return slice(begin, begin + len(rest.rstrip()))


def _level_by_word(text: str) -> str:
    """The level of a line without vLLM's or Ray's; beyond ASCII its letters have other forms, too."""
    lowered, plain = text.lower(), text.isascii()
    if plain and not any(map(lowered.__contains__, _LEVEL_WORDS)):
        return ""
    found = _WORD_LEVEL.match(text)
    if not found and (not plain or "level=" in lowered):
        found = _KEY_LEVEL.search(text)
    return _WORD_LEVELS[next(filter(None, found.groups())).lower()] if found else ""


def _own_form(found: re.Match[str], clock: _Clock | None, host: slice | None = None) -> _LineParts:
    """A line of vLLM's own form, behind what a launcher has put before it."""
    who = [slice(*one.span(1)) for one in _PROCESS.finditer(found.string, found.start(), found.end(1))]
    return _LineParts(clock, [host, *who] if host else who, _stripped(found.string, found.end()), found[2], host)


@lru_cache(1024)
def _own_time(stamp: str, newest: float) -> float | None:
    """The time of a line of vLLM's own form; most lines are of the same second as the one above."""
    clock, _, fraction = stamp[6:].partition(".")
    hour, minute, second = map(int, clock.split(":"))
    return _past((int(stamp[:2]), int(stamp[3:5]), hour, minute, second, fraction or None), newest)


def parse_time(text: str, newest: float = UNDATED) -> float | None:
    """The first time in the first 400 characters of a line; without a year, the last one that is not after `newest`."""
    return _dated_time(text, newest)[0]


def _dated_time(text: str, newest: float) -> tuple[float | None, bool]:
    """The same, and whether it has a year."""
    return _time_at(_find_clock(text), text, newest)


def _find_clock(text: str, at: int = 0) -> _Clock | None:
    """Where the first time of a line is, from this place on."""
    head = text[at : at + _HEAD]
    clock = _ANY_TIME.search(head)
    if clock is None:
        return None
    if (found := _OWN_TIME.match(head)) is None:
        year = _ANY_YEAR.search(head)
        found = _TIMES[0].search(head, max(0, year.start() - len("2026"))) if year else None
        if found is None and (levels := [place for level in _LEVELS if (place := head.find(level)) >= 0]):
            found = _TIMES[1].search(head, min(levels))
        found = found or _TIMES[2].match(head) or _TIMES[3].search(head, max(0, clock.start() - len("[E1121 10")))
    if found is None:
        return None
    begin, end = found.start() + at, found.end() + at
    if found["f"] and found.end("f") == found.end():
        return _Clock(found.re, slice(begin, found.start("f") - 1 + at), slice(found.start("f") + at, end))
    return _Clock(found.re, slice(begin, end))


def _time_at(clock: _Clock | None, text: str, newest: float) -> tuple[float | None, bool]:
    """The time that is there, and whether it has a year."""
    if clock is None:
        return None, False
    at, dated = _time_of(clock.form, text[clock.stamp], newest)
    return at if at is None or clock.fraction is None else at + float(f"0.{text[clock.fraction]}"), dated


@lru_cache(1024)
def _time_of(form: re.Pattern[str], text: str, newest: float) -> tuple[float | None, bool]:
    """The time in a text of one of the forms, and whether it has a year; lines of one second follow each other."""
    found = form.match(text)
    assert found  # noqa: S101 - it was found there
    part = found.groupdict()
    moment = _in_year(part)
    if part.get("y"):
        at = _moment(int(part["y"]), moment)
        return at, at is not None and form is _TIMES[0]
    return _past(moment, newest), False


def _past(moment: _InYear, newest: float) -> float | None:
    """Of a time without a year the last one that is not after `newest`."""
    year = _year(newest)
    at = _moment(year, moment)
    # A clock of another zone is up to 14 hours ahead.
    return _moment(year - 1, moment) if at is None or at > newest + DAY else at


def learn_newest(lines: Iterable[str], newest: float) -> float:
    """What bounds the lines without a year: half a year after the dated lines of their log, else `newest`.

    When a file was copied or unpacked is not when it was written; one date of another time of the year
    may be the line of another log.
    """
    dated, bare = [], None
    for line in lines:
        head = line[:_HEAD]
        if found := _TIMES[0].search(head):
            dated.append(_moment(int(found["y"]), _in_year(found.groupdict())))
        elif bare is None:
            bare = parse_time(head, newest)
    known = [at for at in dated if at is not None and at <= latest(newest)]
    if not known or bare is None:
        return newest
    apart = [min((at - bare) % YEAR, (bare - at) % YEAR) for at in known]
    nearest = min(range(len(known)), key=apart.__getitem__)
    same = sum(abs(at - known[nearest]) < HALF_YEAR for at in known)
    return known[nearest] + HALF_YEAR if apart[nearest] < (NEAR if same > 1 else 2) * DAY else newest


def latest(newest: float) -> float:
    """The latest date that a log may have which was last written at `newest`: the path of a request may have any."""
    return END_OF_YEARS if newest == UNDATED else newest + DAY


def _in_year(part: Mapping[str, str]) -> _InYear:
    month = _MONTHS.find(part["name"]) // 3 + 1 if "name" in part else int(part["mo"])
    return month, int(part["d"]), int(part["h"]), int(part["m"]), int(part["s"]), part["f"]


def _moment(year: int, moment: _InYear) -> float | None:
    month, of_month, hour, minute, second, fraction = moment
    day = _midnight(year, month, of_month)
    if day is None or hour > 23 or minute > 59 or second > 59:
        return None
    return day + 3600 * hour + 60 * minute + second + (float(f"0.{fraction}") if fraction else 0.0)


@lru_cache(1024)
def _midnight(year: int, month: int, day: int) -> float | None:
    try:
        return datetime(year, month, day, tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return None


@lru_cache(64)
def _year(at: float) -> int:
    return datetime.fromtimestamp(min(at, END_OF_YEARS), UTC).year
