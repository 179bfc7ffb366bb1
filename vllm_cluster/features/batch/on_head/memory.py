"""The memory of a batch's long answers: each holds as much as has arrived of it, and all together a fixed amount."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf

STEP, CHECK_SECONDS = 64 << 10, 1.0
# The least that an answer brings in a second, from some time after its beginning on: a server sends it when it is
# whole, and a network of 100 Mbit/s brings ten times as much.
PACE, PATIENCE = 1 << 20, 10.0


class AnswerMemory:
    """What one answer holds; `give_way` ends that answer, which is `slow` then."""

    def __init__(self, give_way: Callable[[], None]) -> None:
        self.give_way, self.slow = give_way, False
        self.size = self.wanted = 0
        self.since = self.asked = time.monotonic()
        self.served = asyncio.Event()

    @property
    def waits(self) -> bool:
        """Whether it has less than it asked for."""
        return self.wanted > self.size

    def close(self) -> None:
        """Have it stay as it is: its answer has arrived, and is late no more."""
        self.since = inf


class Budget:
    """An amount of memory, which the oldest answer alone may use up: the longest one fits in what is left for it.

    So one always comes to its end. While others wait, one that is long in coming gives way, and is asked again.
    """

    def __init__(self, size: int, longest: int) -> None:
        self._left, self._longest = size, longest
        self._shares: dict[AnswerMemory, None] = {}
        self._checked = 0.0

    @contextmanager
    def share(self, give_way: Callable[[], None]) -> Iterator[AnswerMemory]:
        """Have a share, until what it is for is done."""
        share = AnswerMemory(give_way)
        self._shares[share] = None
        try:
            yield share
        finally:
            del self._shares[share]
            self._left += share.size
            self._serve()

    async def grow(self, share: AnswerMemory, size: int) -> None:
        """Wait until a share has so much."""
        if size <= share.size:
            return
        share.asked, share.wanted = time.monotonic(), -(-size // STEP) * STEP
        share.served.clear()
        self._serve()
        while share.waits:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(share.served.wait(), CHECK_SECONDS)
            self._end_slow()

    def _serve(self) -> None:
        """Give what is left, the oldest first."""
        kept = 0
        for share in self._shares:
            if share.waits:
                left = self._left - (share.wanted - share.size)
                if left < kept:
                    return
                self._left, share.size = left, share.wanted
                share.since += time.monotonic() - share.asked  # while it waited, nothing of it was read
                share.served.set()
            kept = self._longest

    def _end_slow(self) -> None:
        now = time.monotonic()
        if now - self._checked < CHECK_SECONDS:
            return
        self._checked = now
        for share in self._shares:
            if not share.waits and now - share.since > PATIENCE + share.size / PACE:
                share.slow = True
                share.give_way()
