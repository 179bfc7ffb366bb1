"""A line of a log, parsed into time, source, level and text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import NamedTuple

from vllm_cluster.kernel.explain.prefix import peel

MAX_LINE = 4096
DAY = 86400.0
# The last second of 1970: what has no date is of one year.
UNDATED = 365 * DAY - 1
YEAR = 365.25 * DAY
HALF_YEAR = 182 * DAY
NEAR = 31  # days between a dated line and one without a year that it dates
_HEAD = 400
# Month, day, hour, minute, second, and the digits of its fraction, if it has any.
_InYear = tuple[int, int, int, int, int, str | None]
# Pasted from a terminal, colours are without their escape character, or it is written with two.
_ANSI = re.compile(r"(?:\x1b|\^\[)\[[0-9;?]*[ -/]*[@-~]|\x1b[^\[]?|\[\d{1,2}(?:;\d{1,3}){0,4}m")
_WHO = re.compile(r"^\s*(?:\(([A-Za-z][\w.:-]{0,60}(?: [^()]{0,120})?)\)|\[(rank\d{1,5}|\w{1,20})\]:?) ?")
_REPEATED = re.compile(r" ?\[repeated (\d{1,9})x across cluster\](?: \(Ray deduplicates logs[^)]{0,400}\))?")
# Before 0.8 vLLM opened no bracket before the file.
_LEVEL = re.compile(
    r"^(DEBUG|INFO|WARNING|ERROR|CRITICAL) (?:\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})? )?\[?[^\[\] ]{1,120}:\d{1,6}\] ?"
)
# Ray's own lines: Python's with a tab, C++'s with a letter, and dumps of its state, full of words like "failed: 0".
_GROUP_LEVEL = re.compile(r"^[\d-]{10} [\d:]{8},\d{3}\s([A-Z]+) |^\[[\d-]{10} [\d:,]{12} ([A-Z]) |^\[(state-dump)\]")
# Of programs that have no bracket: `WARNING: …`, `x.py:7: UserWarning: …`, `… - WARNING - …`, `level=warning`.
_WORD_LEVEL = re.compile(
    r"^\W{0,3}(debug|info|warn|notice)(?:ing)?\]?:(?=\s|\w+:)|^\S{1,300}:\d{1,6}: \w{0,40}(warn)ing: "
    r"|^[^\[{]{0,80} - (debug|info|warn)(?:ing)? - ",
    re.IGNORECASE,
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
# What pytest puts before a line.
_TEST = "E   "
_NCCL_HOST = re.compile(r"^([\w.-]{1,80}):\d{1,9}:\d{1,9} \[\d{1,3}\] ")
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
# A search that begins with a fixed character takes a tenth of the time of the others, which are left out without it.
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


def parse_line(raw: bytes, newest: float = UNDATED, names: frozenset[str] = frozenset()) -> LogLine:
    """Take a line apart; `newest` is when its log was last written, for the many formats without a year.

    `names` are those that begin lines of this log, as `prefix.learn` finds them.
    """
    text = raw[:MAX_LINE].decode("utf-8", "replace").rstrip("\r\n").removesuffix("^M")
    if "0m" in text or "\x1b" in text or "^[[" in text:
        text = _ANSI.sub("", text)
    if (own := _OWN_LINE.match(text)) and "[repeated" not in text:
        return _own_line(own, text, _own_time(own[3], newest))
    peeled = peel(text.removeprefix(_TEST), names)
    time, dated = _dated_time(peeled.text if peeled.relayed else text, newest)
    text = peeled.text.removeprefix(_TEST)
    if peeled.host and (own := _OWN_LINE.match(text)) and "[repeated" not in text:
        return _own_line(own, text, time, peeled.host, dated=dated)
    who = [peeled.host] if peeled.host else []
    bracketed = ""
    # Each of these has a character without which it is not looked for.
    while len(who) < 5 and (text[:1] in "([" or text[:1].isspace()) and (found := _WHO.match(text)):
        if level_of := _BRACKETED.get((found[2] or "").upper()):
            bracketed = level_of
        else:
            who.append(found[1] or found[2])
        text = text[found.end() :]
        if text[:1] == "[" or text[:1].isdigit():
            text = peel(text, names).text.removeprefix(_TEST)
    if "] " in text and (nccl := _NCCL_HOST.match(text)):
        who.append(nccl[1])
    repeated = _REPEATED.search(text) if "[repeated" in text else None
    text = _REPEATED.sub("", text, count=1) if repeated else text
    level = _LEVEL.match(text) if text.startswith(_LEVELS) else None
    level = level or (_GROUP_LEVEL.match(text) if text[:1] == "[" or text[:1].isdecimal() else None)
    text = text[level.end() if level and level.re is _LEVEL else 0 :].strip()
    times, grade = int(repeated[1]) if repeated else 1, next(filter(None, level.groups()), "") if level else ""
    grade = grade or bracketed or _level_by_word(text)
    return _line((time, " ".join(who), text, times, grade, peeled.host, dated))


def _level_by_word(text: str) -> str:
    """The level of a line without vLLM's or Ray's; beyond ASCII its letters have other forms, too."""
    lowered, plain = text.lower(), text.isascii()
    if plain and not any(map(lowered.__contains__, _LEVEL_WORDS)):
        return ""
    found = _WORD_LEVEL.match(text)
    if not found and (not plain or "level=" in lowered):
        found = _KEY_LEVEL.search(text)
    return _WORD_LEVELS[next(filter(None, found.groups())).lower()] if found else ""


def _own_line(found: re.Match[str], text: str, time: float | None, host: str = "", *, dated: bool = False) -> LogLine:
    """A line of vLLM's own form, behind what a launcher has put before it."""
    who = found[1][1:-2].replace(") (", " ")
    if host:
        who = f"{host} {who}" if who else host
    return _line((time, who, text[found.end() :].strip(), 1, found[2], host, dated))


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
    head = text[:_HEAD]
    if _ANY_TIME.search(head) is None:
        return None, False
    if (found := _OWN_TIME.match(head)) is None:
        found = _TIMES[0].search(head) if _ANY_YEAR.search(head) else None
        if found is None and any(map(head.__contains__, _LEVELS)):
            found = _TIMES[1].search(head)
        found = found or _TIMES[2].match(head) or _TIMES[3].search(head)
    if found is None:
        return None, False
    fraction = found["f"] if found.end("f") == found.end() else None
    if not fraction:
        return _time_of(found.re, found[0], newest)
    at, dated = _time_of(found.re, found[0][: -len(fraction) - 1], newest)
    return None if at is None else at + float(f"0.{fraction}"), dated


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
    known = [at for at in dated if at is not None]
    if not known or bare is None:
        return newest
    apart = [min((at - bare) % YEAR, (bare - at) % YEAR) for at in known]
    nearest = min(range(len(known)), key=apart.__getitem__)
    same = sum(abs(at - known[nearest]) < HALF_YEAR for at in known)
    return known[nearest] + HALF_YEAR if apart[nearest] < (NEAR if same > 1 else 2) * DAY else newest


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
    return datetime.fromtimestamp(at, UTC).year
