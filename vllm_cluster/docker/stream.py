"""Feeds the docker SDK with a byte stream in place of a socket."""

from __future__ import annotations

import http
import io
import queue
from collections.abc import Callable
from typing import Any, cast

import requests
import requests.adapters
import urllib3
import urllib3.connection

from vllm_cluster.transport.base import MAX_STREAMS, Stream

OpenStream = Callable[[], Stream]

# Far more than any list or document of an engine; what comes in pieces (pull, build, files, logs) is bounded there.
MAX_ANSWER = 16 << 20
MAX_REFUSAL = 64 << 10


class _Reader(io.RawIOBase):
    """The reading side of a stream as a file, which is how http.client reads a response."""

    def __init__(self, stream: Stream, done: Callable[[], None]) -> None:
        self._stream = stream
        self._done = done

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._done()


class _Deaf:
    """What the SDK takes for the channel of a reply: it would lift the time-out there, and then wait for ever."""

    def settimeout(self, _seconds: float | None) -> None:
        """Keep the time-out that the call was made with."""


class _Reply(io.BufferedReader):
    channel = _Deaf()


class _StreamSocket:
    """The few socket methods that http.client and urllib3 call, on a stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._readers = 0
        self._closed = False
        self.sendall = stream.sendall
        self.settimeout = stream.settimeout

    def makefile(self, *_: object, **__: object) -> io.BufferedReader:
        self._readers += 1
        return _Reply(_Reader(self._stream, self._reader_closed), 64 * 1024)

    def shutdown(self, _how: int) -> None:
        self._stream.shutdown_write()

    def close(self) -> None:
        # http.client closes the socket while the reply is still being read, as a real socket allows.
        self._closed = True
        if not self._readers:
            self._stream.close()

    def _reader_closed(self) -> None:
        self._readers -= 1
        if self._closed and not self._readers:
            self._stream.close()


class _Connection(urllib3.connection.HTTPConnection):
    def __init__(self, open_stream: OpenStream, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._open_stream = open_stream

    def connect(self) -> None:
        stream = self._open_stream()
        stream.settimeout(self.timeout)
        self.sock = cast(Any, _StreamSocket(stream))

    @property
    def is_connected(self) -> bool:
        # urllib3 asks a real socket whether the peer hung up; a stream finds out when it reads.
        return self.sock is not None


class _Pool(urllib3.HTTPConnectionPool):
    def __init__(self, open_stream: OpenStream, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout, maxsize=MAX_STREAMS, block=True)
        self._open_stream = open_stream

    def _new_conn(self) -> _Connection:
        return _Connection(self._open_stream, cast(float | None, self.timeout.connect_timeout))

    def _get_conn(self, timeout: float | None = None) -> Any:
        # The inherited method polls the file descriptor of a kept connection, which a stream has not.
        try:
            kept = cast("queue.LifoQueue[Any]", self.pool).get(block=True, timeout=timeout)
        except queue.Empty:
            raise urllib3.exceptions.EmptyPoolError(self, "all streams to the host are busy") from None
        return kept or self._new_conn()


class StreamAdapter(requests.adapters.HTTPAdapter):
    """Sends every request of a session over streams from `open_stream`."""

    def __init__(
        self, open_stream: OpenStream, timeout: float, longest: Callable[[], float], guard: Callable[[], None]
    ) -> None:
        super().__init__()
        self._pool = _Pool(open_stream, timeout)
        self._longest = longest
        self._guard = guard

    def before(self, method: str | None) -> None:
        """Ask the guard, right before a call that may change the host is sent."""
        if method not in ("GET", "HEAD"):
            self._guard()

    def get_connection_with_tls_context(self, *_: Any, **__: Any) -> Any:
        """The one pool, whatever the request's address."""
        return self._pool

    def send(  # type: ignore[override]
        self, request: requests.PreparedRequest, stream: bool = False, timeout: Any = None, **kwargs: Any
    ) -> requests.Response:
        """The reply; one that is read as a whole is read here, and no further than it may be long.

        What the SDK would wait for without end (pull, build, wait) gets the call's deadline.
        """
        self.before(request.method)
        reply = super().send(request, stream=True, timeout=timeout or self._longest(), **kwargs)
        refused = reply.status_code >= http.HTTPStatus.BAD_REQUEST
        if not stream or refused:
            most = MAX_REFUSAL if refused else MAX_ANSWER
            content = reply.raw.read(most + 1, decode_content=True)
            if len(content) > most:
                reply.raw.close()
                if not refused:
                    raise requests.RequestException(f"its answer is longer than {most >> 20} MB")
            # What requests itself notes once it has read a reply.
            reply._content, reply._content_consumed = content[:most], True  # type: ignore[attr-defined]
        return reply

    def close(self) -> None:
        """Close every stream."""
        super().close()
        self._pool.close()
