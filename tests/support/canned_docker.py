"""A host whose Docker gives the answers that a test has made, as bytes on a stream."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from vllm_cluster.kernel.clock import SYSTEM_CLOCK, Clock, Deadline
from vllm_cluster.kernel.docker.client import DockerApi
from vllm_cluster.kernel.transport.base import Stream, Transport

# What answers a request, given as its first line: pieces of bytes, as long as they are read.
Answers = Callable[[str], Iterator[bytes]]


def answer(body: bytes, status: int = 200) -> bytes:
    """A whole HTTP answer."""
    return b"HTTP/1.1 %d told\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


def archive_of(content: bytes) -> bytes:
    """A file as Docker sends it."""
    entry, archive = tarfile.TarInfo("a.json"), io.BytesIO()
    entry.size = len(content)
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked answer."""
    return b"%x\r\n%b\r\n" % (len(data), data)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class CannedStream:
    """Both directions of `docker system dial-stdio`; `sent` is all that was sent, `longest` the longest wait."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._pieces: Iterator[bytes] = iter(())
        self._rest = b""
        self.sent = bytearray()
        self.longest = 0.0
        self.closed = False

    def sendall(self, data: bytes, /) -> None:
        head = data.startswith((b"GET ", b"POST ", b"PUT ", b"DELETE "))
        self.sent += data
        if head:
            self._pieces = self._answers(data.split(b"\r\n", 1)[0].decode())

    def recv(self, size: int, /) -> bytes:
        self._rest = self._rest or next(self._pieces, b"")
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def settimeout(self, seconds: float | None, /) -> None:
        assert seconds, "a wait without an end"
        self.longest = max(self.longest, seconds)

    def shutdown_write(self) -> None:
        """Nothing waits for it."""

    def stderr_tail(self) -> str:
        return ""

    def exit_code(self) -> int:
        return 0

    def close(self) -> None:
        self.closed = True


class CannedHost:
    """A transport whose streams all lead to these answers."""

    host = "gpu1"

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.streams: list[CannedStream] = []

    def open_stream(self, _argv: Sequence[str], _deadline: Deadline) -> Stream:
        self.streams.append(CannedStream(self._answers))
        return self.streams[-1]


def canned(answers: Answers, clock: Clock = SYSTEM_CLOCK) -> tuple[DockerApi, CannedHost]:
    """The Docker client of such a host, and the host."""
    host = CannedHost(answers)
    return DockerApi(cast(Transport, host), "1.41", clock=clock), host


def always(*pieces: bytes) -> Any:
    """Answers that are the same for any request."""
    return lambda _line: iter(pieces)
