"""A line of a log, parsed into time, source, level and text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

MAX_LINE = 4096
DAY = 86400.0
# The last second of 1970: what has no date is of one year.
UNDATED = 365 * DAY - 1
_HEAD = 400
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[^\[]?")
_WHO = re.compile(r"^\s*(?:\(([A-Za-z][\w.:-]{0,60}(?: [^()]{0,120})?)\)|\[(rank\d{1,5}|\w{1,20})\]:?) ?")
_REPEATED = re.compile(r" ?\[repeated (\d{1,9})x across cluster\](?: \(Ray deduplicates logs[^)]{0,400}\))?")
# Before 0.8 vLLM opened no bracket before the file.
_LEVEL = re.compile(
    r"^(DEBUG|INFO|WARNING|ERROR|CRITICAL) (?:\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})? )?\[?[^\[\] ]{1,120}:\d{1,6}\] ?"
)
# Ray's own lines: Python's with a tab, C++'s with a letter, and dumps of its state, full of words like "failed: 0".
_GROUP_LEVEL = re.compile(r"^[\d-]{10} [\d:]{8},\d{3}\s([A-Z]+) |^\[[\d-]{10} [\d:,]{12} ([A-Z]) |^\[(state-dump)\]")
# What Docker, its compose, and a build service put before a line.
_DOCKER = re.compile(
    r"^(?:[\w.-]{1,60} {1,40}\| )?(?:E   )?"
    r"(?:\[?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]? )?(?:E   )?"
)
_NCCL_HOST = re.compile(r"^([\w.-]{1,80}):\d{1,9}:\d{1,9} \[\d{1,3}\] ")
_SYSLOG = re.compile(r"^\w{3} [ \d]\d \d\d:\d\d:\d\d ([\w.-]{1,80}) ")
_CLOCK = r"(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,9}))?"
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
_TIMES = tuple(
    re.compile(pattern)
    for pattern in (
        rf"(?P<y>\d{{4}})-(?P<mo>\d\d)-(?P<d>\d\d)[T ]{_CLOCK}",
        rf"\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<mo>\d\d)-(?P<d>\d\d) {_CLOCK}",
        # glog and torch write E1121, older torch E528 for the 28th of May.
        rf"\[?\b[DIWEF](?P<mo>\d\d??)(?P<d>\d\d) {_CLOCK}",
        rf"^\[?(?:\w{{3}} )?(?P<name>[A-Z][a-z]{{2}}) +(?P<d>\d{{1,2}}) {_CLOCK}(?: (?P<y>\d{{4}}))?",
    )
)


@dataclass(frozen=True)
class LogLine:
    """The parts of a line. `time` is in seconds since 1970 as if every clock were UTC, None where the line has none."""

    time: float | None
    who: str
    words: str
    times: int = 1
    level: str = ""

    @property
    def calm(self) -> bool:
        """Whether its level is below error."""
        return self.level in ("DEBUG", "INFO", "WARNING", "D", "I", "W", "state-dump")


def parse_line(raw: bytes, newest: float = UNDATED) -> LogLine:
    """Take a line apart; `newest` is when its log was last written, for the many formats without a year."""
    text = raw[:MAX_LINE].decode("utf-8", "replace").rstrip("\r\n")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    time = parse_time(text, newest)
    text = _DOCKER.sub("", text, count=1)
    who: list[str] = []
    if syslog := _SYSLOG.match(text):
        who.append(syslog[1])
    while len(who) < 5 and (found := _WHO.match(text)):
        who.append(found[1] or found[2])
        text = text[found.end() :]
    if nccl := _NCCL_HOST.match(text):
        who.append(nccl[1])
    repeated = _REPEATED.search(text)
    text = _REPEATED.sub("", text, count=1) if repeated else text
    level = _LEVEL.match(text) or _GROUP_LEVEL.match(text)
    text = _LEVEL.sub("", text, count=1).strip()
    times = int(repeated[1]) if repeated else 1
    return LogLine(time, " ".join(who), text, times, next(filter(None, level.groups()), "") if level else "")


def parse_time(text: str, newest: float = UNDATED) -> float | None:
    """The first time in the first 400 characters of a line; without a year, the last one that is not after `newest`."""
    head = text[:_HEAD]
    for pattern in _TIMES:
        found = pattern.search(head)
        if found is None:
            continue
        part = found.groupdict()
        if part.get("y"):
            return _moment(int(part["y"]), part)
        year = datetime.fromtimestamp(newest, UTC).year
        at = _moment(year, part)
        # A clock of another zone is up to 14 hours ahead.
        return _moment(year - 1, part) if at is None or at > newest + DAY else at
    return None


def _moment(year: int, part: Mapping[str, str]) -> float | None:
    month = _MONTHS.find(part["name"]) // 3 + 1 if "name" in part else int(part["mo"])
    try:
        at = datetime(year, month, int(part["d"]), int(part["h"]), int(part["m"]), int(part["s"]), tzinfo=UTC)
        return at.timestamp() + float(f"0.{part['f'] or 0}")
    except (ValueError, OverflowError):
        return None
