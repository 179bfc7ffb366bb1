"""The connections of clients at the front: how many there are, how long they may wait, what cannot be read."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from aiohttp import StreamReader, web
from aiohttp.web_protocol import RequestHandler

from vllm_cluster.serving.node.front_refusal import answer
from vllm_cluster.serving.node.front_settings import MAX_FRAMING, MAX_UNPROVED
from vllm_cluster.serving.node.key_check import Refusal
from vllm_cluster.serving.node.process import log_line

# A first request comes within this time, the next one of a connection within the other.
HEAD_SECONDS, IDLE_SECONDS = 10.0, 75.0
# Of all connections, how many wait for a request: 8,192 took 80 MB in four processes, beside the heads of each.
IDLE_PART = 2
# What a refused client still sends is dropped: an answer is lost where its connection is reset.
LINGER_SECONDS = 2.0
# Of a line or a header, as vLLM's own server takes.
MAX_HEAD = 64 << 10
# A line of a head takes more than its bytes, and aiohttp 3.13 has no limit for them: 20 MB of `a:b` took 600 MB.
LINE_BYTES = 150
# Parsed at once of a head, and so of requests that follow one another without waiting: 86 MB of them took 485 MB.
HEAD_PIECE = 512
# Read at once: of a stranger little, since it is held until the request before it is answered: 4,000 strangers with
# 256 kB of requests each took 432 MB. Of a body much.
STRANGER_PIECE, PIECE = 2 << 10, 64 << 10
# Written to a client that does not read, beside what the kernel takes.
MAX_UNSENT = 2 << 10
# What a client sends must not become a line of the log.
_SILENT = logging.getLogger("vllm_cluster.front")
_SILENT.disabled = True


class Door:
    """Every connection, and those without a request: strangers, and clients between two requests."""

    def __init__(self, most: int, patience: float, count: Callable[[int], None], unproved: int = MAX_UNPROVED) -> None:
        self.patience, self.count = patience, count
        self._most, self._unproved, self._shut = most, unproved, False
        # How much the head of each takes that is not whole, and all of them.
        self._sent: dict[RequestHandler, int] = {}
        self._sent_by_all = 0
        # In the order in which they began to wait, with the end of their time.
        self._idle: dict[RequestHandler, float] = {}
        self._taken: set[RequestHandler] = set()

    @property
    def taken(self) -> int:
        """How many connections there are."""
        return len(self._taken)

    def admit(self, connection: RequestHandler) -> bool:
        """Take a connection; where there are too many, the one that has waited longest for a request goes."""
        if len(self._taken) >= self._most or len(self._idle) >= self._most // IDLE_PART:
            first = next(iter(self._idle), None)
            if first is None or self._shut:
                return False
            self.leave(first)
            first.force_close()
        self._taken.add(connection)
        self._idle[connection] = time.monotonic() + HEAD_SECONDS * self.patience
        return True

    def prove(self, connection: RequestHandler) -> None:
        """Let a connection be that has a request with the right key."""
        self._idle.pop(connection, None)
        self.forget(connection)

    def waits(self, connection: RequestHandler) -> bool:
        """Whether it has no request, or none yet with the right key."""
        return connection in self._idle

    def receive(self, connection: RequestHandler, size: int) -> None:
        """Count what is parsed of a head; where all of them take too much, who sent most goes."""
        self._sent[connection] = self._sent.get(connection, 0) + size
        self._sent_by_all += size
        while self._sent_by_all > self._unproved:
            most = max(self._sent, key=self._sent.__getitem__)
            self.leave(most)
            most.force_close()

    def forget(self, connection: RequestHandler) -> None:
        """Count no head of it: it is whole."""
        self._sent_by_all -= self._sent.pop(connection, 0)

    def rest(self, connection: RequestHandler) -> None:
        """Have a connection wait for its next request, or end where none can come."""
        self.forget(connection)
        if connection in self._taken:
            self._idle[connection] = time.monotonic() + IDLE_SECONDS * self.patience

    def leave(self, connection: RequestHandler) -> None:
        """Forget a connection that has ended."""
        self._taken.discard(connection)
        self._idle.pop(connection, None)
        self.forget(connection)

    def sweep(self, now: float) -> None:
        """End those that have waited too long."""
        for connection in [one for one, until in self._idle.items() if until < now]:
            connection.force_close()

    def shut(self) -> None:
        """End all that wait."""
        self._shut = True
        self.sweep(float("inf"))


class ClientConnection(RequestHandler):
    """A client's connection, whose errors have the shape that clients of OpenAI read."""

    def __init__(self, server: web.Server, door: Door) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=IDLE_SECONDS,
            access_log=_SILENT,
            logger=_SILENT,
            max_line_size=MAX_HEAD,
            max_field_size=MAX_HEAD,
            lingering_time=LINGER_SECONDS * door.patience,
            auto_decompress=False,
        )
        self._door = door
        self._ahead, self._held = bytearray(), False
        self._body: StreamReader | None = None
        self._came = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        cast("asyncio.Transport", transport).set_write_buffer_limits(MAX_UNSENT)
        if not self._door.admit(self):
            self.force_close()

    def force_close(self) -> None:
        """End at once: a close waits until a client has read all, without end where it does not read."""
        transport = self.transport
        super().force_close()
        if transport:
            transport.abort()

    @property
    def piece(self) -> int:
        """How much of it is read at once."""
        return STRANGER_PIECE if self._door.waits(self) else PIECE

    def data_received(self, data: bytes) -> None:
        if not data:
            # aiohttp's own call, for what its parser has kept.
            super().data_received(data)
        self._ahead += data
        self.take()

    def expect(self, body: StreamReader) -> None:
        """Read a body from now on."""
        self._body, self._came = body, 0

    def _weigh(self, size: int) -> None:
        """End a body of which more comes than it has, or that cannot be read."""
        self._came += size
        body = None if self._body is None or self._body.is_eof() else self._body
        # Before its end no other message comes than an error: aiohttp 3.14 gives it no other way.
        if body and (self._messages or self._came > MAX_FRAMING + 2 * body.total_bytes):
            self._body = None
            body.set_exception(ValueError("too little of what comes is the body"))

    def take(self) -> None:
        """Parse what has come, up to the next request: what follows it waits for its answer, and its client too."""
        while self._ahead and not self._messages:
            head = self._door.waits(self)
            piece = bytes(self._ahead[: HEAD_PIECE if head else len(self._ahead)])
            del self._ahead[: len(piece)]
            if head:
                self._door.receive(self, len(piece) + LINE_BYTES * piece.count(b"\n"))
            super().data_received(piece)
            if not head:
                self._weigh(len(piece))
        if self._messages:
            self._door.forget(self)
        held, self._held = self._held, bool(self._ahead)
        with suppress(RuntimeError, AttributeError):  # the connection has ended
            if self._held:
                self.transport.pause_reading()  # type: ignore[union-attr]
            # aiohttp continues what it has paused itself.
            elif held and not getattr(self, "_reading_paused", False):
                self.transport.resume_reading()  # type: ignore[union-attr]

    def connection_lost(self, error: BaseException | None) -> None:
        self._door.leave(self)
        self._ahead.clear()
        super().connection_lost(error)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer what cannot be parsed."""
        if request.writer.output_size > 0:
            raise ConnectionError("its answer has begun")
        self._door.count(status)
        if status >= 500:
            log_line("front", f"a request ended with {type(exc).__name__}")
        words = "this is not HTTP/1.1 as RFC 9112 has it" if status < 500 else "the front has failed: try again"
        return answer(Refusal(status, "bad_request" if status < 500 else "front_failed", words), close=True)


class ClientReader(asyncio.BufferedProtocol):
    """Reads for a connection: what aiohttp's own protocol is given at once has any size."""

    # What is read is copied from it before anything else is read.
    _read = memoryview(bytearray(PIECE))

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connection.connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def eof_received(self) -> None:
        self._connection.eof_received()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._read[: self._connection.piece]

    def buffer_updated(self, nbytes: int) -> None:
        self._connection.data_received(bytes(self._read[:nbytes]))
