"""What launchers and collectors put before a line: the names of hosts and pods, stamps, JSON around it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MAX_LEARNT = 2000  # lines that are looked at for names
MIN_LINES = 3
# Names are learnt where this share of their lines continues like a log, or of all lines begins with them.
SHARE = 0.8
MAX_DEPTH = 6
MAX_BAR = 101  # characters in which a name ends with a bar

_ISO = re.compile(
    r"\[?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]? "
    # As consoles of clouds show it, with the zone apart.
    r"(?:[+-]\d\d:?\d\d (?:[A-Z]{2,5} )?|(?:UTC|GMT) )?"
    # A program that logs what another one prints.
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - [\w.]{1,80} - INFO - "
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,9})? (?=\(|DEBUG\b|INFO\b|WARNING\b|ERROR\b|Traceback)"
)
# A name of docker compose, host and source of `vcluster logs`, or the margin that Python draws beside the exceptions of
# a group.
_BAR = re.compile(
    r"(?:([\w.-]{1,60}) {1,40}(?:(?:replica \d{1,4} )?(?:node|ray|vllm|rank \d{1,5}) {1,40})?| {2,64})\| ?"
)
_HOST = re.compile(
    r"\[?(?:pod|container)/([\w./-]{1,120})\]? |\[\d{1,5},\d{1,5}\]<(?:stderr|stdout|stdin)>: ?"
    r"|\[((?!rank|state-dump)[A-Za-z](?=[\w./-]*[./-])[\w./-]{1,80})\]:? "
    r"|((?!python|sha|md5)[a-z][a-z0-9.-]{0,60}\d(?:[.-][a-z0-9.-]{1,40})?): | {0,3}\d{1,4}: "
)
# What such a name begins with, if it does not begin with a digit.
_BEGINS_HOST = frozenset("[ abcdefghijklmnopqrstuvwxyz")
# Of a daemon its name stays: the words behind it are evidence only with it.
_SYSLOG = re.compile(
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d ([\w.-]{1,80}) "
    r"((?!kernel|earlyoom|systemd|docker|containerd|sshd|nvidia|slurm|oom)[\w.@/-]{1,60}(?:\[\d{1,9}\])?: )?"
)
_JSON = re.compile(r'"(?:log|message|msg|MESSAGE|line|text)" ?: ?"((?:[^"\\]++|\\.)*+)')
# What Python's loggers put beside a message: the traceback, of which the last line is the exception.
_JSON_RAISED = re.compile(
    r'"(?:exc_info|exc_text|exception|stack_trace|stacktrace|traceback)" ?: ?"((?:[^"\\]++|\\.)*+)"'
)
_RAISED = re.compile(r"(?:[\w.]{1,80}\.)?\w{0,80}(?:Error|Exception)(?:$|: )")
_JSON_HOST = re.compile(r'"(?:host|hostname|pod|pod_name|node|_HOSTNAME)" ?: ?"([\w./-]{1,120})"')
# No name begins with a dash: of a line of dashes each could be its beginning, 11 ms for 160 of them.
_SECTION = re.compile(
    r"(?:={2,}>?|#{2,}|-{3,}(?!-)|\*{3,}) ?"
    r"\[?((?:(?:host|node|worker|head|rank|pod|on|from|log of|logs of) )?[\w.:/@-]{1,120})\]?"
    r"(?: \([^)]{0,80}\))?:? ?(?:<?={2,}|#{2,}|-{3,}|\*{3,})$"
)
_CALLED = re.compile(r"[\w./-]{1,80}:?")
_NAME_LIKE = re.compile(r"[\d./-]|:$")
_WORDS = re.compile(
    r"(?:[\w.]*(?:Error|Exception|Exit|Warning|Interrupt)|DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL|error|warning|fatal"
    r"|File|raise|return|vcluster|NCCL|NVRM|E|W|I|[\d:.,/-]+):?|(?:usage|note|fix|docker|vllm|bash|sh|ssh|python[\d.]*|pip):"
)
_LOG_LINE = re.compile(
    r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b|Traceback \(|  ?File |\(\w+ pid=|\[rank\d|\[?\d{4}-\d\d-\d\d"
    r"|\w*Error: |\$ "
)


class Peeled(NamedTuple):
    """A line without its prefix; `host` is the name that the prefix gives.

    `relayed`: a daemon stamped what another program wrote, whose own times are nearer to the fact.
    """

    text: str
    host: str = ""
    relayed: bool = False


class Prefix(NamedTuple):
    """Where the prefix of a line ends, and which part of it is the name of the host."""

    end: int
    host: slice | None
    relayed: bool


def learn(lines: Iterable[str]) -> frozenset[str]:
    """The words that begin lines of this file and are names: most of what follows them is a line of its own."""
    rows = [peel(line).text for _, line in zip(range(MAX_LEARNT), lines, strict=False) if line.strip()]
    names: set[str] = set()
    for _ in range(2):
        found = _names(rows)
        if not found:
            break
        names |= found
        rows = [peel(row, frozenset(found)).text for row in rows]
    return frozenset(names)


def _names(rows: Sequence[str]) -> set[str]:
    begun: dict[str, list[str]] = {}
    for row in rows:
        name, gap, rest = row.partition(" ")
        if gap and _CALLED.fullmatch(name) and not _WORDS.fullmatch(name):
            begun.setdefault(name, []).append(rest)
    return {
        name
        for name, rests in begun.items()
        if len(rests) >= MIN_LINES and len(Counter(rests)) > 1 and _share(name, rests, len(rows)) >= SHARE
    }


def _share(name: str, rests: Sequence[str], total: int) -> float:
    """How far a word looks like a prefix: a name begins most lines, any word all, or log lines follow it."""
    most = len(rests) / total if _NAME_LIKE.search(name) or len(rests) == total else 0.0
    return max(most, sum(bool(_LOG_LINE.match(rest)) for rest in rests) / len(rests))


def section(text: str) -> str:
    """The name in a heading between the logs of several hosts, `===== gpu1 =====`; empty where it is none."""
    found = _SECTION.match(text.strip())
    name = found[1].strip("=#-*_.:/@") if found else ""
    return found[1] if found and name and not name.isdigit() else ""


def unwrapped(text: str) -> tuple[str, str]:
    """The line that a collector has put into JSON, and the host that it names; any other line as it is."""
    if text.startswith("{") and (inner := _JSON.search(text)):
        named, raised = _JSON_HOST.search(text), _JSON_RAISED.search(text)
        last = _unquoted(raised[1]).rstrip().rpartition("\n")[2] if raised else ""
        return last if _RAISED.match(last) else _unquoted(inner[1]), named[1] if named else ""
    return text, ""


def peel(text: str, names: frozenset[str] = frozenset()) -> Peeled:
    """Take off everything that a launcher or a collector has put before the line."""
    line, host = unwrapped(text)
    prefix = find_prefix(line, names, named=bool(host))
    return Peeled(line[prefix.end :], line[prefix.host] if prefix.host else host, prefix.relayed)


def find_prefix(text: str, names: frozenset[str], at: int = 0, *, named: bool = False) -> Prefix:
    """Where that ends, from this place on; `named`: its host is known, and what is only like a name is none."""
    host, relayed = None, False
    for _ in range(MAX_DEPTH):
        if found := _found(text, at):
            relayed = relayed or bool(found.re is _SYSLOG and found[2])
            own = next((number for number, group in enumerate(found.groups(), 1) if group), 0)
            if own or (found.re is _HOST and not (host or named)):
                host = _stripped(text, " :", *found.span(own))
            at = found.end()
            continue
        end = text.find(" ", at) if names else -1
        if end < 0 or text[at:end] not in names:
            break
        host = host or (None if named else _stripped(text, ":", at, end))
        at = end + 1
    return Prefix(at, host, relayed)


def _stripped(text: str, off: str, start: int, end: int) -> slice:
    """This part of a text, without these characters at its ends."""
    begin = end - len(text[start:end].lstrip(off))
    return slice(begin, begin + len(text[begin:end].rstrip(off)))


def _found(text: str, at: int) -> re.Match[str] | None:
    """The next prefix; the first character shows which ones it can be."""
    first = text[at : at + 1]
    found = None
    if "A" <= first <= "Z":
        found = _SYSLOG.match(text, at)
    elif first == "[" or first.isdecimal():
        found = _ISO.match(text, at)
    if not found and text.find("|", at, at + MAX_BAR) >= 0:
        found = _BAR.match(text, at)
    return found or (_HOST.match(text, at) if first in _BEGINS_HOST or first.isdecimal() else None)


def _unquoted(text: str) -> str:
    # Most lines end with an escaped break, and have no other escape.
    line = text.removesuffix("\\n")
    if "\\" not in line and line.isprintable():
        return line if line == text else f"{line}\n"
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:
        return text
