"""Requests and answers between the hosts of a pull, each signed with the key of this pull.

The signature covers who asks for what, and what is answered; the bytes of a file are covered by the file's own hash,
which came over SSH. Nothing is encrypted: `sendfile` would be lost, and the network is the cluster's own.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any

from vllm_cluster.wire.pull import ChainHost, HostPlan, ModelFile

# A sender ends an answer that has had no more bytes for this long: a sender that is silent for longer is lost.
QUIET_SECONDS = 1.0
SILENT_SECONDS = 2.5
# A host that is cut off tries this often; the kernel itself would wait up to 12 s after a cut of 10 s.
CONNECT_SECONDS = 1.0
PROOF = "X-Vcluster-Proof"
MAX_BODY = 16 << 20


class BadPeerError(Exception):
    """An answer that is not of this pull: another program, another key, or damaged."""


class Busy(Exception):
    """The host serves as many others as it may."""


def sign(key: str, *parts: str | bytes) -> str:
    """Return the signature of the parts, each with its length, so that no two lists look alike."""
    digest = hmac.new(bytes.fromhex(key), digestmod=hashlib.sha256)
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.hexdigest()


def same(one: str, other: str) -> bool:
    """Compare two signatures; any text may come from outside."""
    return hmac.compare_digest(one.encode(), other.encode())


class Peer:
    """A connection to another host of the pull.

    Raises, from each method: OSError, HTTPException and BadPeerError where the host cannot be used, Busy where later.
    """

    def __init__(self, plan: HostPlan, host: ChainHost) -> None:
        self.name = host.name
        self._key, self._me, self._files = plan.key, plan.me, len(plan.files)
        self._connection = HTTPConnection(host.address, host.port, timeout=CONNECT_SECONDS)
        self._socket: Any = None
        self._interrupted = False

    def have(self) -> list[int]:
        """Return the bytes that the host has of each file, the size plus one where it is verified."""
        found = self._ask("GET", "/have").get("files")
        if not (isinstance(found, list) and len(found) == self._files and all(isinstance(row, int) for row in found)):
            raise BadPeerError("a number for each file was expected")
        return found

    def report(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Send this host's progress to the source, and return its answer."""
        return self._ask("POST", "/report", json.dumps(row).encode())

    def file(self, index: int, file: ModelFile, start: int) -> FileBody | None:
        """Ask for a file from a byte onwards; None where the host has no more of it yet."""
        answer, nonce = self._send("GET", f"/f/{index}", b"", f"bytes={start}-")
        place = answer.headers.get("Content-Range", "")
        self._check(answer, nonce, place.encode())
        if answer.status == 204:
            answer.read()
            return None
        if answer.status != 206 or place != f"bytes {start}-{file.size - 1}/{file.size}":
            raise BadPeerError(f"answered {answer.status} {place}")
        return FileBody(answer, file.size - start)

    def interrupt(self) -> None:
        """End what another thread does with the connection; that thread closes it."""
        self._interrupted = True
        with suppress(OSError, AttributeError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        self._connection.close()

    def _ask(self, method: str, path: str, body: bytes = b"") -> dict[str, Any]:
        answer, nonce = self._send(method, path, body, "")
        found = answer.read(MAX_BODY)
        self._check(answer, nonce, found)
        if answer.status != 200:
            raise BadPeerError(f"answered {answer.status}")
        try:
            value = json.loads(found)
        except ValueError as exc:
            raise BadPeerError(f"not JSON: {exc}") from exc
        if not isinstance(value, dict):
            raise BadPeerError("a JSON object was expected")
        return value

    def _send(self, method: str, path: str, body: bytes, span: str) -> tuple[HTTPResponse, str]:
        kept = self._connection.sock is not None
        try:
            return self._send_once(method, path, body, span)
        except ConnectionError:
            # The host closes one that has been idle for a while, as behind the flush of a large file.
            if not kept or self._interrupted:
                raise
            self.close()
            return self._send_once(method, path, body, span)

    def _send_once(self, method: str, path: str, body: bytes, span: str) -> tuple[HTTPResponse, str]:
        nonce = secrets.token_hex(16)
        proof = sign(self._key, "ask", method, path, span, self._me, nonce, body)
        headers = {"Authorization": f"vcluster {self._me} {nonce} {proof}"} | ({"Range": span} if span else {})
        if self._connection.sock is None:
            self._connection.connect()
            self._socket = self._connection.sock
            self._socket.settimeout(SILENT_SECONDS)
        self._connection.request(method, path, body or None, headers)
        return self._connection.getresponse(), nonce

    def _check(self, answer: HTTPResponse, nonce: str, content: bytes) -> None:
        if answer.status == 403:
            raise BadPeerError("the host refuses the key of this pull")
        if not same(answer.headers.get(PROOF, ""), sign(self._key, "answer", nonce, str(answer.status), content)):
            raise BadPeerError("the answer is not signed with the key of this pull")
        if answer.status == 503:
            answer.read()
            raise Busy


class FileBody:
    """The bytes of a file as they arrive."""

    def __init__(self, answer: HTTPResponse, left: int) -> None:
        self._answer = answer
        self._left = left

    def read(self, buffer: memoryview) -> int:
        """Read what has arrived, one receive at most; 0 at the end, which may be before the end of the file."""
        if not self._left:
            # Keeps the connection for the next request.
            self._answer.close()
            return 0
        # Not HTTPResponse.readinto: it waits until the buffer is full, and each host on the chain would add to it.
        count = self._answer.fp.readinto1(buffer[: self._left])
        self._left -= count
        return count


LOST = (OSError, HTTPException, BadPeerError)
