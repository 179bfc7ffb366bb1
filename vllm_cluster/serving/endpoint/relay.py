"""A port of this machine that leads to the way there is now, and answers while there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from vllm_cluster.kernel.transport.forward import Away, LoopbackForward, Pipe, SocketPipe

DIAL_SECONDS = 5.0


class Way(Protocol):
    """The API of a head, brought to a port of this machine; whether it `answers` now."""

    host: str
    port: int
    answers: bool


class Relay:
    """The port of a tunnel in the background, for as long as its process lives.

    It is kept while the way to the head is away, so that no other program of this machine can take it and get the key.
    """

    def __init__(self, port: int, seconds: float) -> None:
        """Clients ask again after `seconds`, where there is no way."""
        self._way: Way | None = None
        self._seconds = seconds
        self._forward = LoopbackForward("tunnel", self._dial, port, shared=True)
        self.port, self.close = self._forward.local_port, self._forward.close

    @contextmanager
    def leading_to(self, way: Way) -> Iterator[None]:
        """Lead there meanwhile."""
        self._way = way
        try:
            yield
        finally:
            self._way = None

    def _dial(self) -> Pipe:
        way = self._way
        if way is None or not way.answers:
            return Away(f"no API answers at {way.host}" if way else "the head cannot be reached", self._seconds)
        return SocketPipe.dial("127.0.0.1", way.port, DIAL_SECONDS)
