"""Which rank a process of vLLM is, by what it prints of itself: without Ray all ranks of a host share one log."""

from __future__ import annotations

import re

# What vLLM puts before each line of its processes: a worker's name grows once it knows its groups, its pid stays.
_PROCESS = re.compile(rb"\((Worker|EngineCore)(?:_DP(\d{1,5}))?[A-Z0-9_]* pid=(\d{1,10})\) ")
# Of one host, of all its replicas and of starts before too; a log may name any number of processes.
MAX_RANKS = 1024
_PREFIXES = (b"(Worker", b"(EngineCore")
_JOINS = re.compile(rb"\bworld_size=(\d{1,6}) rank=(\d{1,6}) local_rank=(\d{1,6}) distributed_init_method=(\S{0,9})")
# The first engine of a host prints its configuration: with this, each engine of a dense model counts its ranks alone.
_CONFIGURED, _ALONE = b"Initializing a V1 LLM engine", b"data_parallel_size=1,"
# Where ranks meet that are all of one host.
_IN_HOST = (b"file:", b"tcp://127")


class RankNames:
    """The ranks of one host's log; lines must come in their order."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[int | None, bytes, bytes], int] = {}
        # By replica, the first of the host's engines that count alone.
        self._first: dict[int | None, int] = {}

    def rank(self, text: bytes, replica: int | None = None) -> int | None:
        """Return the rank that has printed a line of vLLM; None where no rank has, or it is not known."""
        if not text.startswith(_PREFIXES) or (process := _PROCESS.match(text)) is None:
            return None
        kind, engine, pid = process.groups()
        if kind == b"EngineCore" and _CONFIGURED in text:
            self._first.pop(replica, None)
            if engine and _ALONE in text:
                self._first[replica] = int(engine)
        if joins := _JOINS.search(text):
            world, number, local = map(int, joins.groups()[:3])
            if engine and world == 1:
                # An engine with one GPU runs its rank itself.
                number = int(engine)
            elif world and not engine and replica in self._first and joins[4].startswith(_IN_HOST):
                number += (self._first[replica] + local // world) * world
            if len(self._ranks) >= MAX_RANKS:
                self._ranks.pop(next(iter(self._ranks)))
            self._ranks[replica, kind, pid] = number
        return self._ranks.get((replica, kind, pid))
