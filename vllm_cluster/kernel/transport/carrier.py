"""What the carriers share: calls counted and in the debug log, and over SSH the limits and errors of a connection."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.debug_log import logged
from vllm_cluster.kernel.errors import ConnectionLost, TimedOut, Unreachable
from vllm_cluster.kernel.shell_line import shell_line
from vllm_cluster.kernel.text import end_of
from vllm_cluster.kernel.transport.base import MAX_COMMANDS, MAX_OUTPUT, MAX_STREAMS, Forward, Result, Stream, Target
from vllm_cluster.kernel.transport.command_line import shorten_command
from vllm_cluster.kernel.transport.connect_errors import AGAIN
from vllm_cluster.kernel.transport.jumps import Jumps
from vllm_cluster.kernel.transport.ssh_config import SshEndpoint, ensure_safe_names

RETRY_SECONDS = 0.1
# Of what a command wrote on standard error where it failed.
MAX_REASON = 300
# Of `timeout`, and of what it killed.
ENDED_BY_TIMEOUT = (124, 137)


class Carrier(ABC):
    """A transport, but for how it carries. Of input and output only the sizes are logged: secrets travel there."""

    kind: str

    def __init__(self, target: Target) -> None:
        self._target = target
        self._counting = threading.Lock()
        self._round_trips = 0

    @property
    def host(self) -> str:
        """The host's name in the inventory."""
        return self._target.name

    @property
    def round_trips(self) -> int:
        """How many times something was started on the host."""
        return self._round_trips

    def connect(self, deadline: Deadline) -> None:
        """Connect and authenticate; does nothing when connected."""
        with logged(self.host, self.kind, "connect"):
            self._connect(deadline)

    def run(self, argv: Sequence[str], deadline: Deadline, *, stdin: bytes = b"", most: int = MAX_OUTPUT) -> Result:
        """Run one command to its end; of each output so many bytes are kept."""
        with logged(self.host, self.kind, f"run {_words(argv)} ({len(stdin)} bytes in)") as call:
            seconds = deadline.left()
            result = self._run(argv, deadline, stdin, most)
            # The host ends it at the same moment, and on a busy machine its exit code is there first.
            if result.returncode in ENDED_BY_TIMEOUT and not deadline.left():
                raise self._not_ended(f"`{shorten_command(argv)}`", seconds)
            call.result = f"exit {result.returncode}, {len(result.stdout)} bytes out"
            if result.returncode:
                call.result += f": {end_of(result.stderr.decode('utf-8', 'replace'), MAX_REASON)}"
            return result

    def open_stream(self, argv: Sequence[str], deadline: Deadline) -> Stream:
        """Start a command and talk to it."""
        with logged(self.host, self.kind, f"stream {_words(argv)}") as call:
            call.result = "open"
            return self._open_stream(argv, deadline)

    def forward(self, remote_port: int, local_port: int = 0, *, remote_host: str = "127.0.0.1") -> Forward:
        """Bring a port of the host to 127.0.0.1 here."""
        with logged(self.host, self.kind, f"forward {remote_host}:{remote_port}") as call:
            forward = self._forward(remote_port, local_port, remote_host)
            call.result = f"from 127.0.0.1:{forward.local_port}"
            return forward

    @abstractmethod
    def _connect(self, deadline: Deadline) -> None:
        """Connect and authenticate, where that is not done."""

    @abstractmethod
    def _run(self, argv: Sequence[str], deadline: Deadline, stdin: bytes, most: int) -> Result:
        """Run one command to its end."""

    @abstractmethod
    def _open_stream(self, argv: Sequence[str], deadline: Deadline) -> Stream:
        """Start a command."""

    @abstractmethod
    def _forward(self, remote_port: int, local_port: int, remote_host: str) -> Forward:
        """Forward a port."""

    def _count(self) -> None:
        with self._counting:
            self._round_trips += 1

    def _not_ended(self, doing: str, seconds: float) -> TimedOut:
        return TimedOut(self.host, f"{doing} did not end in the {seconds:.0f} s that it had", again=())


class SshCarrier(Carrier):
    """A host over SSH, whose commands and streams take a slot each for as long as they are open."""

    def __init__(self, target: Target, jumps: Jumps, endpoint: SshEndpoint | None = None) -> None:
        ensure_safe_names(target)
        super().__init__(target)
        self._jumps, self._endpoint = jumps, endpoint
        self._connecting = threading.Lock()
        self._commands = threading.BoundedSemaphore(MAX_COMMANDS)
        self._streams = threading.BoundedSemaphore(MAX_STREAMS)

    def close(self) -> None:
        """End the connection and its streams."""
        with self._connecting:
            self._close()

    @abstractmethod
    def _close(self) -> None:
        """End the connection and its streams."""

    @contextlib.contextmanager
    def _command(self, deadline: Deadline, doing: str) -> Iterator[None]:
        """A slot for one command."""
        self._take(self._commands, deadline, doing)
        try:
            yield
        finally:
            self._commands.release()

    def _take(self, slots: threading.BoundedSemaphore, deadline: Deadline, doing: str) -> None:
        if not slots.acquire(timeout=deadline.left()):
            raise TimedOut(self.host, f"{doing} did not start: too many commands run on this connection", again=())

    def _unconnected(self) -> Unreachable:
        return Unreachable(self.host, "there is no connection", hint="connect first")

    def _gone(self, where: str, why: str) -> Unreachable:
        return Unreachable(self.host, f"the connection to {where} was lost earlier: {why}", hint=AGAIN)


def lost(host: str, where: str, doing: str, why: str) -> ConnectionLost:
    """The error for a connection that broke while `doing` was under way."""
    hint = "the command may have completed; rerun it to check and continue"
    return ConnectionLost(host, f"the connection to {where} was lost during {doing}: {why}", hint=hint)


def _words(argv: Sequence[str]) -> str:
    """The command as a person would type it; of a script only its first line, which names it."""
    return shell_line(word.partition("\n")[0] + " …" if "\n" in word else word for word in argv)
