"""HTTP over byte streams to one host's Docker: no file, variable or login of this machine takes part in it."""

from __future__ import annotations

import http.client
import io
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.docker.tar_stream import TarStream
from vllm_cluster.kernel.transport.base import MAX_STREAMS, Stream

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

OpenStream = Callable[[], Stream]
Guard = Callable[[], None]

# How much is sent before the deadline is looked at again, and read before it is put together.
SLICE = 32 << 10


class _ResponseReader(io.RawIOBase):
    """The reading side of a stream as a file, which is how http.client reads a response."""

    def __init__(self, socket: _StreamSocket) -> None:
        self._socket = socket

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        data = self._socket.ready().recv(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._socket.release()


class _StreamSocket:
    """The few socket methods that http.client calls, on a stream, each by the deadline of the request."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.deadline = Deadline.after(0)
        self._readers = 0
        self._closed = False

    def ready(self) -> Stream:
        """The stream, which waits for no longer than is left: a peer that sends a byte a second gains no time."""
        left = self.deadline.left()
        if not left:
            raise TimeoutError("timed out")
        self.stream.settimeout(left)
        return self.stream

    def sendall(self, data: bytes) -> None:
        for at in range(0, len(data), SLICE):
            self.ready().sendall(data[at : at + SLICE])

    def makefile(self, *_: object) -> io.BufferedReader:
        self._readers += 1
        return io.BufferedReader(_ResponseReader(self), SLICE)

    def close(self) -> None:
        # http.client closes the socket while the response is still being read, as a real socket allows.
        self._closed = True
        if not self._readers:
            self.stream.close()

    def release(self) -> None:
        """One reader less; the last one closes what was to be closed."""
        self._readers -= 1
        if self._closed and not self._readers:
            self.stream.close()


class Connection(http.client.HTTPConnection):
    """One stream to Docker, for one request at a time."""

    auto_open = 0  # a stream that ended is dropped: nothing reopens it behind our back

    def __init__(self, open_stream: OpenStream) -> None:
        super().__init__("localhost")
        self.open_stream = open_stream
        self._socket = _StreamSocket(open_stream())
        self.sock = self._socket
        self._response: http.client.HTTPResponse | None = None
        self.broken = False

    def send_request(
        self,
        method: str,
        path: str,
        deadline: Deadline,
        body: bytes | TarStream,
        headers: Mapping[str, str],
        *,
        answer_seconds: float = math.inf,
        whole: bool = False,
    ) -> http.client.HTTPResponse:
        """Send a request, and read the beginning of its response; the rest is read by the same deadline.

        Once all is sent the deadline is `answer_seconds` away, where that is sooner. With `whole` the response is the
        rest of the stream.
        """
        self._socket.deadline = deadline
        if whole:
            # A log comes in a chunk a line, which http.client reads at a quarter of the speed.
            self._http_vsn, self._http_vsn_str = 10, "HTTP/1.0"
        self.request(method, path, body or None, dict(headers))
        self._socket.deadline = deadline.sooner(answer_seconds)
        self._response = self.getresponse()
        return self._response

    def renew(self, deadline: Deadline) -> None:
        """Read on by another deadline."""
        self._socket.deadline = deadline

    def read(self, limit: int) -> bytes:
        """The first `limit` bytes of the response.

        Raises:
            EOFError: the stream ended before the response did.
        """
        response, data = self._sent(), bytearray()
        # http.client keeps an object for each chunk until it has all: of chunks of a byte 57 bytes each.
        while len(data) < limit and (piece := response.read(min(SLICE, limit - len(data)))):
            data += piece
        # http.client returns a short read as it is, and takes it for the end.
        if len(data) < limit and response.length:
            raise EOFError("the answer ends in the middle")
        return bytes(data)

    def read_some(self, limit: int) -> bytes:
        """At most `limit` bytes of the response, as soon as there are some; empty at its end."""
        # Python before 3.12 counts no bytes of a known length in read1, and reads on behind the end.
        return self._sent().read1(limit) if self._sent().length is None else self.read(limit)

    def _sent(self) -> http.client.HTTPResponse:
        assert self._response  # noqa: S101 - nothing is read before something was sent
        return self._response

    @property
    def reusable(self) -> bool:
        """Whether the last response, if any, was read to its end, and the stream is usable after it."""
        read = self._response is None or self._response.isclosed()
        return read and self.sock is not None and not self.broken

    @property
    def stream(self) -> Stream:
        """The stream itself, for what is sent while a response is read."""
        return self._socket.stream

    def stderr_tail(self) -> str:
        """What `docker system dial-stdio` wrote to standard error."""
        return self._socket.stream.stderr_tail()

    def discard(self) -> None:
        """Close the stream, also where a response was not read to its end."""
        if self._response:
            self._response.close()
        self.close()
        self._socket.stream.close()


class Pool:
    """At most `MAX_STREAMS` connections at once, kept open for the next request while no other stream needs a place."""

    def __init__(self, open_stream: OpenStream) -> None:
        self._open_stream = open_stream
        self._slots = threading.BoundedSemaphore(MAX_STREAMS)
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._openings = 0
        self._closed = False

    def take(self, deadline: Deadline) -> Connection:
        """A connection for one request, to be given back.

        Raises:
            TimeoutError: every connection was busy until the deadline.
        """
        if not self._slots.acquire(timeout=deadline.left()):
            raise TimeoutError("all streams to the host are busy")
        try:
            with self._lock:
                if self._idle:
                    return self._idle.pop()
                open_stream = self._open_stream
            return Connection(open_stream)
        except BaseException:
            self._slots.release()
            raise

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next request, or close it where it cannot serve one."""
        with self._lock:
            now = not self._closed and not self._openings and connection.open_stream is self._open_stream
            keep = now and connection.reusable
            if keep:
                self._idle.append(connection)
        try:
            if not keep:
                connection.discard()
        finally:
            self._slots.release()

    def fence(self, open_stream: OpenStream) -> None:
        """Open what is opened from now on by `open_stream`; idle connections of before are closed."""
        with self._lock:
            self._open_stream = open_stream
        self._close_idle()

    @contextmanager
    def without_idle(self) -> Iterator[None]:
        """Keep no connection idle meanwhile: each has the place of a stream that may be waited for."""
        with self._lock:
            self._openings += 1
        try:
            self._close_idle()
            yield
        finally:
            with self._lock:
                self._openings -= 1

    def close(self) -> None:
        """Close every idle connection now, and every other one when it is given back."""
        with self._lock:
            self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            with suppress(OSError):
                connection.discard()
