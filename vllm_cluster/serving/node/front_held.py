"""Requests that are open at the front, and their bodies: how much all of these may take, and which one goes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from vllm_cluster.serving.node.front_refusal import FrontRefusal
from vllm_cluster.serving.node.key_check import Refusal
from vllm_cluster.wire.front import FrontReplica

TOO_LARGE_NOW = Refusal(503, "too_busy", "too many large requests at once: try again", 1)


@dataclass(eq=False)
class Exchange:
    """A request that is open: where it is, the task that serves it, and its body, until its answer begins."""

    task: asyncio.Task[object] | None
    replica: FrontReplica | None = None
    lost: bool = False
    tried: list[str] = field(default_factory=list)
    body: bytes = b""
    # Why the front answers in the replica's place.
    refused: Refusal | None = None

    def lose(self) -> None:
        """Have it leave its replica, which is lost."""
        self.lost = True
        self._interrupt()

    def refuse(self, refusal: Refusal) -> None:
        """Have it end, wherever it is, with this answer."""
        self.refused, self.lost = refusal, False
        self._interrupt()

    def _interrupt(self) -> None:
        if self.task:
            self.task.cancel()


class HeldBodies:
    """What the bodies take of which no answer has begun: where it is too much, the request with the largest goes.

    Not the one that comes last: four of 64 MB, whose answers took as long as their client liked, kept all others out.
    """

    def __init__(self, most: int) -> None:
        self._most, self._held = most, 0
        self._sizes: dict[Exchange, int] = {}

    def take(self, exchange: Exchange, size: int) -> None:
        """Count so many bytes more of a request's body.

        Raises:
            FrontRefusal: it is the largest, and there is no more room.
        """
        self._sizes[exchange] = self._sizes.get(exchange, 0) + size
        self._held += size
        while self._held > self._most:
            largest = max(self._sizes, key=self._sizes.__getitem__)
            self.release(largest)
            if largest is exchange:
                raise FrontRefusal(TOO_LARGE_NOW)
            largest.refuse(TOO_LARGE_NOW)

    def release(self, exchange: Exchange) -> None:
        """Keep a body no longer: it is not sent again."""
        exchange.body = b""
        self._held -= self._sizes.pop(exchange, 0)
