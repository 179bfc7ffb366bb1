"""Requests and answers between the hosts of a pull, each signed with the key of this pull.

A request is a line of JSON, an answer a line with its status, its proof and how many bytes follow. The signature covers
who asks for what, and what is answered; the bytes of a file are covered by the file's own hash, which came over SSH.
Nothing is encrypted: `sendfile` would be lost, and the network is the cluster's own.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Final, TypeVar

from vllm_cluster.wire.pull import ChainHost, HostPlan, ModelFile, SpreadAsk, SpreadHave, SpreadOrder
from vllm_cluster.wire.reading import RefusedDocument, read
from vllm_cluster.wire.signature import same, sign

# A sender ends an answer that has had no more bytes for this long: a sender that is silent for longer is lost.
QUIET_SECONDS = 1.0
SILENT_SECONDS = 2.5
# A host that is cut off tries this often; the kernel itself would wait up to 12 s after a cut of 10 s.
CONNECT_SECONDS = 1.0
# A document of any peer, with what each of 100,000 files has, over a slow link.
MAX_BODY, BODY_SECONDS = 2 << 20, 10.0
MAX_LINE = 16 << 10
PIECE = 64 << 10
HAVE: Final = "have"
FILE: Final = "file"
REPORT: Final = "report"
OK, NONE, BUSY, REFUSED = "ok", "none", "busy", "refused"

T = TypeVar("T")


class BadPeerError(Exception):
    """An answer that is not of this pull: another program, another key, or damaged."""


class Busy(Exception):
    """The host serves as many others as it may."""


def proof_of(key: str, ask: SpreadAsk) -> str:
    """The signature of a request."""
    return sign(key, "ask", ask.what, ask.me, ask.nonce, *map(str, (ask.file, ask.start, ask.bytes)), ask.failed)


class Reader:
    """What comes over a connection: a line, or so many bytes, by a deadline for the whole of it."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._rest = connection, b""

    def line(self, seconds: float) -> bytes:
        """Return the next line; empty where the connection has ended.

        Raises:
            BadPeerError: it is too long.
            OSError: the connection is lost, or the line is not there in time.
        """
        until = time.monotonic() + seconds
        while b"\n" not in self._rest:
            if len(self._rest) > MAX_LINE:
                raise BadPeerError("a line is too long")
            if not self._more(until):
                return b""
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def exactly(self, count: int, seconds: float) -> bytes:
        """Return so many bytes.

        Raises:
            OSError: as `line`, also where the connection ends before.
        """
        until = time.monotonic() + seconds
        while len(self._rest) < count:
            if not self._more(until):
                raise ConnectionError("the answer breaks off")
        found, self._rest = self._rest[:count], self._rest[count:]
        return found

    def into(self, buffer: memoryview) -> int:
        """Read what has arrived, one receive at most; 0 at the end."""
        if not self._rest:
            return self._socket.recv_into(buffer)
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count

    def _more(self, until: float) -> bool:
        if (left := until - time.monotonic()) <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(left)
        data = self._socket.recv(PIECE)
        self._rest += data
        return bool(data)


class Peer:
    """A connection to another host of the pull.

    Raises, from each method: OSError and BadPeerError where the host cannot be used, Busy where later.
    """

    def __init__(self, plan: HostPlan, host: ChainHost) -> None:
        self.name = host.name
        self._key, self._me, self._files = plan.key, plan.me, len(plan.files)
        self._there = (host.address, host.port)
        # The others answer the addresses of the plan alone.
        self._here = next(((one.address, 0) for one in plan.hosts if one.name == plan.me), None)
        self._socket: socket.socket | None = None
        self._reader: Reader | None = None
        self._interrupted = False
        # What it answered last to `have`, as long as that leads to files.
        self.known: tuple[int, ...] = ()

    def have(self) -> tuple[int, ...]:
        """Return the bytes that the host has of each file, the size plus one where it is verified."""
        found = self._ask(SpreadAsk(HAVE, self._me, "", ""), SpreadHave).files
        if len(found) != self._files:
            raise BadPeerError("a number for each file was expected")
        self.known = found
        return found

    def report(self, count: int, failed: str) -> SpreadOrder:
        """Send this host's progress to the source, and return its answer."""
        return self._ask(SpreadAsk(REPORT, self._me, "", "", bytes=count, failed=failed), SpreadOrder)

    def file(self, index: int, file: ModelFile, start: int) -> FileBody | None:
        """Ask for a file from a byte onwards; None where the host has no more of it yet."""
        status, place = self._send(SpreadAsk(FILE, self._me, "", "", index, start))
        if status == NONE:
            return None
        if (status, place) != (OK, b"%d-%d" % (start, file.size)):
            raise BadPeerError(f"answered {status}")
        assert self._socket and self._reader  # noqa: S101
        self._socket.settimeout(SILENT_SECONDS)
        return FileBody(self._reader, file.size - start)

    def interrupt(self) -> None:
        """End what another thread does with the connection; that thread closes it."""
        self._interrupted = True
        with suppress(OSError, AttributeError):
            self._socket.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._socket:
            self._socket.close()
        self._socket, self.known = None, ()

    def _ask(self, ask: SpreadAsk, kind: type[T]) -> T:
        status, body = self._send(ask)
        if status != OK:
            raise BadPeerError(f"answered {status}")
        try:
            return read(kind, body, self.name, MAX_BODY)
        except RefusedDocument as refused:
            raise BadPeerError(f"{refused.field} {refused.why}") from None

    def _send(self, ask: SpreadAsk) -> tuple[str, bytes]:
        kept = self._socket is not None
        try:
            return self._send_once(ask)
        except ConnectionError:
            # The host closes one that has been idle for a while, as behind the flush of a large file.
            if not kept or self._interrupted:
                raise
            self.close()
            return self._send_once(ask)

    def _send_once(self, ask: SpreadAsk) -> tuple[str, bytes]:
        ask = replace(ask, nonce=secrets.token_hex(16))
        if self._socket is None:
            self._socket = socket.create_connection(self._there, CONNECT_SECONDS, self._here)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._reader = Reader(self._socket)
        connection, reader = self._socket, self._reader
        assert reader  # noqa: S101
        connection.settimeout(SILENT_SECONDS)
        connection.sendall(json.dumps(asdict(replace(ask, proof=proof_of(self._key, ask)))).encode() + b"\n")
        line = reader.line(SILENT_SECONDS)
        if not line:
            raise ConnectionError("the host has closed the connection")
        status, proof, length = [*line.decode("ascii", "replace").split(" "), "", "", ""][:3]
        if status == REFUSED:
            raise BadPeerError("the host refuses the key of this pull")
        if not (length.isascii() and length.isdecimal() and len(length) < 9 and int(length) <= MAX_BODY):
            raise BadPeerError("the answer is none of a pull")
        body = reader.exactly(int(length), BODY_SECONDS)
        if not same(proof, sign(self._key, "answer", ask.nonce, status, body)):
            raise BadPeerError("the answer is not signed with the key of this pull")
        if status == BUSY:
            raise Busy
        return status, body


class FileBody:
    """The bytes of a file as they arrive."""

    def __init__(self, reader: Reader, left: int) -> None:
        self._reader = reader
        self._left = left

    def read(self, buffer: memoryview) -> int:
        """Read what has arrived, one receive at most; 0 at the end, which may be before the end of the file."""
        if not self._left:
            return 0
        count = self._reader.into(buffer[: self._left])
        self._left -= count
        return count


LOST = (OSError, BadPeerError)
