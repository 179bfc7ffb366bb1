"""Feeds the docker SDK with a byte stream in place of a socket."""

from __future__ import annotations

import io
import queue
from collections.abc import Callable
from typing import Any, cast

import requests.adapters
import urllib3
import urllib3.connection

from vllm_cluster.transport.base import MAX_STREAMS, Stream

OpenStream = Callable[[], Stream]


class _Reader(io.RawIOBase):
    """The reading side of a stream as a file, which is how http.client reads a response."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _StreamSocket:
    """The few socket methods that http.client and urllib3 call, on a stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.sendall = stream.sendall
        self.settimeout = stream.settimeout
        self.close = stream.close

    def makefile(self, *_: object, **__: object) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self._stream), 64 * 1024)

    def shutdown(self, _how: int) -> None:
        self._stream.shutdown_write()


class _Connection(urllib3.connection.HTTPConnection):
    def __init__(self, open_stream: OpenStream, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._open_stream = open_stream

    def connect(self) -> None:
        stream = self._open_stream()
        stream.settimeout(cast(float | None, self.timeout))
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

    def __init__(self, open_stream: OpenStream, timeout: float) -> None:
        super().__init__()
        self._pool = _Pool(open_stream, timeout)

    def get_connection_with_tls_context(self, *_: Any, **__: Any) -> Any:
        """The one pool, whatever the request's address."""
        return self._pool

    def close(self) -> None:
        """Close every stream."""
        super().close()
        self._pool.close()
