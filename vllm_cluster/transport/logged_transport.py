"""A wrapper of any transport that writes each call to the debug log."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from vllm_cluster.clock import Clock, Deadline
from vllm_cluster.debug_log import logged
from vllm_cluster.transport.base import Forward, Result, Stream, Transport

# Of what a command wrote on standard error where it failed.
MAX_REASON = 300


class LoggedTransport:
    """Of input and output only the sizes are written: secrets travel there."""

    def __init__(self, transport: Transport, carrier: str, clock: Clock) -> None:
        self._transport, self._carrier, self._clock = transport, carrier, clock

    @property
    def host(self) -> str:
        """The host's name in the inventory."""
        return self._transport.host

    @property
    def round_trips(self) -> int:
        """How many times this connection has started something on the host."""
        return self._transport.round_trips

    def connect(self, deadline: Deadline) -> None:
        """Connect and authenticate."""
        with logged(self.host, self._carrier, "connect", self._clock):
            self._transport.connect(deadline)

    def run(self, argv: Sequence[str], deadline: Deadline, *, stdin: bytes = b"") -> Result:
        """Run one command."""
        with logged(self.host, self._carrier, f"run {_words(argv)} ({len(stdin)} bytes in)", self._clock) as call:
            result = self._transport.run(argv, deadline, stdin=stdin)
            call.result = f"exit {result.returncode}, {len(result.stdout)} bytes out"
            if result.returncode:
                call.result += f": {result.stderr[-MAX_REASON:].decode('utf-8', 'replace')}"
            return result

    def open_stream(self, argv: Sequence[str], deadline: Deadline) -> Stream:
        """Start a command and talk to it."""
        with logged(self.host, self._carrier, f"stream {_words(argv)}", self._clock) as call:
            call.result = "open"
            return self._transport.open_stream(argv, deadline)

    def forward(self, remote_port: int, local_port: int = 0, *, remote_host: str = "127.0.0.1") -> Forward:
        """Bring a port of the host to 127.0.0.1 here."""
        with logged(self.host, self._carrier, f"forward {remote_host}:{remote_port}", self._clock) as call:
            forward = self._transport.forward(remote_port, local_port, remote_host=remote_host)
            call.result = f"from 127.0.0.1:{forward.local_port}"
            return forward

    def require_alive(self) -> None:
        """Raise where the connection is known to be gone."""
        self._transport.require_alive()

    def close(self) -> None:
        """End the connection and what it carries."""
        self._transport.close()


def _words(argv: Sequence[str]) -> str:
    """The command as a person would type it; of a script only its first line, which names it."""
    return shlex.join(word.partition("\n")[0] + " …" if "\n" in word else word for word in argv)
