"""Lines of the logs of several hosts: what one is, and which of them a person asked for."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.text import and_more, count

SECOND = 1_000_000_000
# The parts of a container's log, as --only chooses them.
NODE, GROUP, VLLM = "node", "ray", "vllm"
# What the node program writes before each line.
_MARKS = {b"[node] ": NODE, b"[nodes] ": NODE, b"[ray] ": GROUP, b"[vllm] ": VLLM}
_OF_REPLICA = b"[vllm_"
# A number of each is remembered, and a host may write any.
MAX_REPLICAS = 4096
# Ray copies what ranks print into the head's log, and leaves out what several of them print.
_COPIED = re.compile(rb"\(RayWorker\w* pid=\d+(?:, ip=([0-9a-fA-F.:]+))?\) ")
# What the node program, `status --watch` and a batch ask for, several times a minute.
_POLL = re.compile(rb'"GET /(?:health|metrics) HTTP/[0-9.]+" 200\b')


class Line(NamedTuple):
    """One line: when it was printed (nanoseconds since 1970 by this machine's clock), where, by what, and its text.

    `replica` is that of the model, where it has several.
    """

    at: int
    host: str
    source: str
    text: str
    rank: int | None = None
    replica: int | None = None


@dataclass(frozen=True)
class LogRequest:
    """What to read: of which hosts, which parts, since when (seconds before now), and whether to follow."""

    hosts: tuple[str, ...]
    rank: int | None = None
    group: bool = False
    vllm: bool = False
    since: float | None = None
    grep: str = ""
    previous: bool = False
    follow: bool = False
    # The lines of vLLM's access log about health and metrics, which vcluster itself asks for.
    polls: bool = False
    replica: int | None = None
    # What people ordered, which the head knows.
    orders: bool = False

    @property
    def sources(self) -> frozenset[str]:
        """The parts of a container's log; of a rank or a replica, vLLM's, where it prints into that."""
        if self.rank is not None or self.replica is not None:
            return frozenset({VLLM})
        asked = {source for source, wanted in ((GROUP, self.group), (VLLM, self.vllm)) if wanted}
        return frozenset(asked or {NODE, GROUP, VLLM})

    @property
    def ranks(self) -> bool:
        """Whether what the ranks print is read, from their own files, which a model of one replica has."""
        return (self.vllm or not self.group) and not self.replica

    def of(self, replica: int | None) -> bool:
        """Whether lines of this replica are asked for; the only one is the first."""
        return self.replica is None or self.replica == (replica or 0)


def split_source(raw: bytes) -> tuple[str, int | None, bytes]:
    """The part of a container's log that a line belongs to, its replica, and the line without that mark."""
    end = raw.find(b"] ", 0, 14) + 2 if raw[:1] == b"[" else 0
    if source := _MARKS.get(raw[:end]):
        return source, None, raw[end:]
    number = raw[len(_OF_REPLICA) : end - 2] if raw.startswith(_OF_REPLICA) else b""
    if number.isdigit() and int(number) < MAX_REPLICAS:
        return VLLM, int(number), raw[end:]
    return NODE, None, raw


def copied_from(raw: bytes) -> str | None:
    """The address of the host whose rank printed a line that Ray copied; empty where it is the log's own host."""
    found = _COPIED.match(raw)
    return (found[1] or b"").decode() if found else None


def is_poll(source: str, text: bytes) -> bool:
    """Whether a line is one of vLLM's access log about a request that no person made, and that went well."""
    return source == VLLM and _POLL.search(text) is not None


class LastLines:
    """Keeps the last lines of what was there when a log was asked for; what is printed later passes.

    `until` is that moment, in nanoseconds of the clock of the lines; None where nothing is to come.
    """

    def __init__(self, number: int, until: int | None, emit: Emit) -> None:
        self._kept: deque[Line] = deque(maxlen=number)
        self._until, self._emit = until, emit
        # Those of the lines that came since the last ones were shown.
        self._hosts: set[str] = set()

    def keep(self, lines: Sequence[Line]) -> list[Line]:
        """The lines to show now, in their order: none before the first new one."""
        until = self._until
        new = [] if until is None else [line for line in lines if line.at >= until]
        old = [line for line in lines if until is None or line.at < until]
        self._kept += old
        self._hosts |= {line.host for line in old}
        return [*self.rest(), *new] if new else []

    def rest(self) -> list[Line]:
        """The lines that were kept; after this they are kept no more."""
        kept = list(self._kept)
        self._kept.clear()
        shown = {line.host for line in kept}
        if len(shown) == 1 and (others := sorted(self._hosts - shown)):
            text = f"the last {count(len(kept), 'line')} are all its own; {and_more(others)} had lines before them"
            self._emit(Event("note", text, kept[0].host))
        self._hosts.clear()
        return kept
