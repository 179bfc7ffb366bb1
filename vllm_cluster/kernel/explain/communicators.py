"""Communicators of NCCL that only some of their ranks have joined: no rank writes that it waits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from vllm_cluster.kernel.explain.catalogue import COMMUNICATORS, CONNECTED, LogPattern
from vllm_cluster.kernel.explain.failure import SignKind

Place = TypeVar("Place")

_JOINS = re.compile(
    r"\bcomm (0x[0-9a-f]{1,16}) rank (\d{1,6}) .{0,200}commId (0x[0-9a-f]{1,16}) - Init (START|COMPLETE)"
)
# What a process of NCCL warns of, and what shows that it went another way or tried again: it has connected.
_WARNS = re.compile(r"(\S{1,80}:\d{1,9}):\d{1,9} \[\d{1,3}\] .{0,80}NCCL WARN ")
_CONNECTED = re.compile(
    r"(\S{1,80}:\d{1,9}):\d{1,9} \[\d{1,3}\] .{0,80}NCCL INFO .{0,200}(?:Init COMPLETE|\bConnected after \d)"
)
MAX_RANKS = 4096
WAITS = LogPattern("collective-timeout", COMMUNICATORS, None, SignKind.SYMPTOM)


class Communicators(Generic[Place]):
    """The ranks that one host has seen begin to join a communicator, and the communicators that one has joined."""

    def __init__(self) -> None:
        self.begun: dict[tuple[str, str, str], Place] = {}
        self.joined: set[str] = set()

    def take(self, words: str, place: Callable[[], Place]) -> None:
        """Look at a line of NCCL; where it is, is asked for only where that is kept."""
        found = _JOINS.search(words)
        if not found:
            return
        pointer, rank, name, done = found.groups()
        if done == "COMPLETE":
            self.begun.pop((name, rank, pointer), None)
            if len(self.joined) < MAX_RANKS:
                self.joined.add(name)
        elif len(self.begun) < MAX_RANKS:
            self.begun[name, rank, pointer] = place()

    def clear(self) -> None:
        """Forget all: the server has answered, or starts again."""
        self.begun.clear()
        self.joined.clear()


def find_waiting(hosts: Iterable[Communicators[Place]]) -> list[Place]:
    """Where ranks began to join a communicator that others have joined, and never did.

    As long as none has joined, they may all be about to.
    """
    seen = list(hosts)
    joined = {name for one in seen for name in one.joined}
    return [place for one in seen for (name, _, _), place in one.begun.items() if name in joined]


def warned(process: str, words: str) -> bool:
    """Whether this process of NCCL, by host and number, warns in a line."""
    # A host may write a line a connection, each of which is compared with all that is kept.
    return words.startswith(process) and (found := _WARNS.match(words)) is not None and found[1] == process


def connected(words: str) -> str | None:
    """The process of NCCL that has connected by a line: what it warned of before that did not keep it from it."""
    found = _CONNECTED.match(words) if CONNECTED in words or COMMUNICATORS in words else None
    return found and found[1]
