"""The connections to replicas: each takes one answer for each request, and little beside the bytes of its body."""

from __future__ import annotations

import asyncio
import functools
from contextlib import suppress
from http import HTTPStatus
from types import SimpleNamespace

import aiohttp
from aiohttp.client_proto import ResponseHandler

from vllm_cluster.serving.node.front_settings import MAX_FRAMING
from vllm_cluster.serving.node.proc import is_here
from vllm_cluster.wire.front import FrontReplica
from vllm_cluster.wire.listeners import is_own_listener

# A connection to a replica, which is on this network.
CONNECT_SECONDS = 3.0
# vLLM's own server ends a connection that was idle for 5 s.
_KEPT_SECONDS = 4.0
# Of a line or a header, and of all that comes before an answer's body, also of answers before the answer (100, 103):
# aiohttp waits for the last one however many come, and 2 GB a minute came.
_LIMIT = 64 << 10
# Of an answer, before its client has taken what came: aiohttp's own 256 KiB of tokens, and the objects around each,
# took 2 MB for each client that reads slowly.
_AHEAD = 16 << 10
# Parsed at once: a read has up to 256 KiB, in which thousands of answers that no request had asked for were a queue of
# 6 MB, and chunks of 20 bytes from 200 streams kept all other clients out for more than a minute.
_PIECE = 4 << 10
# None of what a browser or a library would add of itself.
_BARE = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


class ReplicaConnection(ResponseHandler):
    """A connection to a replica, which ends where more comes than the answer to what was asked."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        # What is not parsed yet; whether reading waits for that, and whether the next piece is due.
        self._ahead, self._held, self._due = bytearray(), False, False
        # Whether a request has no answer yet, and how much of its head or its body has come.
        self._asked, self._came = False, 0
        self._body: aiohttp.StreamReader | None = None
        # Whether its client takes less than comes.
        self._waits = False

    def set_response_params(self, **given: object) -> None:
        """Expect an answer: a request is about to be sent."""
        self._asked, self._came = True, 0
        super().set_response_params(**given)  # type: ignore[arg-type]

    def feed_data(self, data: tuple[aiohttp.http.RawResponseMessage, aiohttp.StreamReader], size: int = 0) -> None:
        """Take the head of an answer."""
        if not self._asked:
            return
        if data[0].code >= HTTPStatus.OK:
            self._asked, self._came, self._body = False, 0, data[1]
        super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        """Take what comes as far as it is an answer, a piece each turn of the loop: aiohttp parses all that it gets."""
        if not data:
            # aiohttp's own call, for what its parser has kept.
            super().data_received(data)
            return
        self._ahead += data
        self._take()

    def pause_reading(self) -> None:
        """Wait until the client has taken what came."""
        self._waits = True
        super().pause_reading()

    def resume_reading(self, **given: bool) -> None:  # type: ignore[override]
        """Continue where it has."""
        self._waits = False
        super().resume_reading(**given)
        self._continue()

    def _take(self) -> None:
        self._due = False
        if self._ahead and self.is_connected() and not self._waits:
            # Behind an answer, or while nothing is asked.
            if not self._asked and (self._body is None or self._body.is_eof()):
                self._end("more comes than its answer")
                return
            piece = bytes(self._ahead[:_PIECE])
            del self._ahead[:_PIECE]
            super().data_received(piece)
            self._weigh(len(piece))
        self._continue()

    def _continue(self) -> None:
        """Read more once all is parsed that is there; its end is behind that."""
        held, self._held = self._held, bool(self._ahead)
        with suppress(RuntimeError, AttributeError):  # the connection has ended
            if self._held:
                # Each time: aiohttp continues what it has paused itself.
                self.transport.pause_reading()  # type: ignore[union-attr]
            elif held and not self._waits:
                self.transport.resume_reading()  # type: ignore[union-attr]
        if self._held and not self._due and not self._waits and self.is_connected():
            self._due = True
            asyncio.get_running_loop().call_soon(self._take)

    def _weigh(self, size: int) -> None:
        self._came += size
        if self._asked and self._came > _LIMIT:
            self._end("it begins no answer")
        body = self._body
        # Of a piece the parser may have kept a part: it is much smaller than this limit.
        if not self._asked and body and not body.is_eof() and self._came > MAX_FRAMING + 2 * body.total_bytes:
            self._end("too little of what comes is the answer")

    def _end(self, why: str) -> None:
        error = aiohttp.ClientPayloadError(why)
        if self._asked:
            self.set_exception(error)
        elif self._body and not self._body.is_eof():
            self._body.set_exception(error)
        self._ahead.clear()
        self.force_close()
        if self.transport:
            self.transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget what has come."""
        self._ahead.clear()
        super().connection_lost(exc)

    @property
    def should_close(self) -> bool:
        """Whether it cannot have another request."""
        return bool(self._ahead) or super().should_close


class _Connector(aiohttp.TCPConnector):
    """Makes such connections: as many as there are requests."""

    def __init__(self, *, kept: bool) -> None:
        more = {"keepalive_timeout": _KEPT_SECONDS} if kept else {"force_close": True}
        super().__init__(limit=0, **more)
        self._factory = functools.partial(ReplicaConnection, loop=asyncio.get_running_loop())  # type: ignore[assignment]


def session(*, kept: bool = True) -> aiohttp.ClientSession:
    """The connections to replicas: as many as there are requests, none by way of a proxy, without cookies.

    They are `kept` for later requests, or each is for one.
    """
    guard = aiohttp.TraceConfig()
    guard.on_connection_create_start.append(_ensure_own)
    return aiohttp.ClientSession(
        trace_configs=[guard],
        connector=_Connector(kept=kept),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=CONNECT_SECONDS, sock_read=None),
        auto_decompress=False,
        skip_auto_headers=_BARE,
        read_bufsize=_AHEAD,
        max_line_size=_LIMIT,
        max_field_size=_LIMIT,
    )


async def _ensure_own(_session: aiohttp.ClientSession, asked: SimpleNamespace, _begin: object) -> None:
    """Make no connection, which shows the key, to another user of this host who listens where a replica has ended.

    Raises:
        ConnectionRefusedError: no program of this user listens there.
    """
    replica: FrontReplica = asked.trace_request_ctx
    if replica.key_file and is_here(replica.host) and not is_own_listener(replica.host, replica.port):
        raise ConnectionRefusedError(f"no program of this user listens at {replica.host}:{replica.port}")
