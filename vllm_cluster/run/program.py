"""Talks JSON lines with a program of vcluster on a host."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from vllm_cluster.clock import Deadline
from vllm_cluster.errors import ConnectionLost, HostError, TimedOut
from vllm_cluster.transport.base import Stream

MAX_LINE = 64 << 10
# What a host may say in all: 256 hosts with every port of every other closed take less than a tenth of it.
MAX_BYTES = 4 << 20


class RunningProgram:
    """A stream whose both directions are JSON objects, one a line. One thread may send while another reads."""

    def __init__(self, host: str, stream: Stream) -> None:
        self.host = host
        self._stream = stream
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._received = 0

    def send(self, row: Mapping[str, Any]) -> None:
        """Send one object.

        Raises:
            HostError: it cannot be sent any more.
        """
        try:
            self._stream.settimeout(10)
            self._stream.sendall(json.dumps(row).encode() + b"\n")
        except (OSError, EOFError) as error:
            raise self._ended(str(error) or type(error).__name__) from error

    def next(self, deadline: Deadline) -> dict[str, Any]:
        """The next object; other lines are a login shell's greetings and are skipped.

        Raises:
            HostError: none comes any more, or not by the deadline, or too much.
        """
        while True:
            while self._lines:
                row = _object(self._lines.popleft())
                if row is not None:
                    return row
            # Split once: to cut off one line at a time copies what is left for each.
            *lines, self._rest = (self._rest + self._more(deadline)).split(b"\n")
            self._lines.extend(lines)

    def _more(self, deadline: Deadline) -> bytes:
        if len(self._rest) > MAX_LINE or self._received > MAX_BYTES:
            raise HostError(self.host, "its program printed too much")
        if not (left := deadline.left()):
            raise TimedOut(self.host, "its program did not answer in time")
        self._stream.settimeout(left)
        try:
            data = self._stream.recv(65536)
        except TimeoutError:
            raise TimedOut(self.host, "its program did not answer in time") from None
        except (OSError, EOFError) as error:
            raise ConnectionLost(self.host, f"the connection to its program broke: {error}") from error
        if not data:
            raise self._ended("it has ended")
        self._received += len(data)
        return data

    def _ended(self, why: str) -> HostError:
        stderr = self._stream.stderr_tail().strip()[-500:]
        return HostError(self.host, f"its program does not run: {stderr or why}")

    def end(self, deadline: Deadline) -> None:
        """End the program and wait until it has gone: `docker run --rm` goes after its container."""
        with suppress(HostError, OSError, EOFError):
            self._stream.shutdown_write()
            while True:
                self._more(deadline)

    def close(self) -> None:
        """End the program: it lives no longer than this."""
        self._stream.close()


def _object(line: bytes) -> dict[str, Any] | None:
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
