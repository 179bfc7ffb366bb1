"""The interface of a connection to a host, for all transports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vllm_cluster.kernel.clock import Deadline

# sshd refuses a session beyond MaxSessions (10) without naming the cause, so both kinds are counted here.
# They are counted apart: streams that are held for long must never starve a command that would end them.
MAX_STREAMS = 4
MAX_COMMANDS = 4
# What is kept of each output of a command: hosts must not fill our memory, and 32 are asked at once. Of 8 MiB that a
# fact script printed, text and sections took 60 MB for each host.
MAX_OUTPUT = 1 << 20
# What is kept of a stream's standard error, for error messages.
MAX_TAIL = 8_192
# A login shell that prints more than this before a command is not listened to any longer.
MAX_GREETING = 1 << 20
# Of what is sent, bytes a second: a host that takes one now and then does not stall.
SLOWEST = 1000


def time_to_send(stall: float | None, size: int) -> Deadline:
    """By when a host has taken so many bytes that may stall for so many seconds; without end where nothing may."""
    return Deadline.after(math.inf if stall is None else stall + size / SLOWEST)


@dataclass(frozen=True)
class Result:
    """What a command left behind; of each output its first bytes alone."""

    returncode: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """Standard output as text; what is not UTF-8 is replaced."""
        return self.stdout.decode("utf-8", "replace")


@dataclass(frozen=True)
class Target:
    """How to reach a host: the inventory's words, before ssh_config has spoken.

    `config` is the ssh_config file to read instead of the user's own (None: the user's own and the system's).
    """

    name: str
    destination: str
    user: str | None = None
    port: int | None = None
    identity: Path | None = None
    jump: str | None = None
    config: Path | None = None
    accept_new_keys: bool = False


class Stream(Protocol):
    """Both directions of a remote command's standard input and output, as bytes.

    One thread may send while another receives. A broken connection raises `ConnectionLost`; a command that has ended is
    the end of the bytes for `recv` and `BrokenPipeError` for `sendall`.
    """

    def sendall(self, data: bytes, /) -> None:
        """Send it all.

        Raises:
            TimeoutError: nothing could be sent for as long as settimeout allows, or less than `SLOWEST`.
        """
        ...

    def recv(self, size: int, /) -> bytes:
        """At most `size` bytes; empty at the end.

        Raises:
            TimeoutError: nothing came within the time set by settimeout.
        """
        ...

    def settimeout(self, seconds: float | None, /) -> None: ...

    def shutdown_write(self) -> None:
        """Close the input of the other side."""
        ...

    def stderr_tail(self) -> str:
        """The last lines that the command wrote to standard error, for error messages."""
        ...

    def exit_code(self) -> int | None:
        """How the command ended, once its output has; None where that does not come, as after a signal."""
        ...

    def close(self) -> None: ...


class Forward(Protocol):
    """A port on this machine whose connections come out on the host's side."""

    @property
    def local_port(self) -> int: ...

    def close(self) -> None: ...


class Transport(Protocol):
    """One connection to one host. Safe to use from several threads.

    Every call ends by its deadline and raises a `HostError` whose class is the decision left to the caller:
    `Unreachable` (nothing was sent), `ConnectionLost` (may have happened), `TimedOut`.
    A command that ran is a `Result` with any exit code.
    """

    @property
    def host(self) -> str:
        """The host's name in the inventory."""
        ...

    @property
    def round_trips(self) -> int:
        """How many times this connection has started something on the host."""
        ...

    def connect(self, deadline: Deadline) -> None:
        """Connect and authenticate.

        Raises:
            HostKeyRejected, AuthenticationFailed, Unreachable: with what to do.
        """
        ...

    def run(self, argv: Sequence[str], deadline: Deadline, *, stdin: bytes = b"", most: int = MAX_OUTPUT) -> Result:
        """Run one command, each argument arriving as it is; the remote side dies with the deadline too."""
        ...

    def open_stream(self, argv: Sequence[str], deadline: Deadline) -> Stream:
        """Start a command and talk to it; the deadline is for the start alone."""
        ...

    def forward(self, remote_port: int, local_port: int = 0, *, remote_host: str = "127.0.0.1") -> Forward:
        """Bring a port of the host to 127.0.0.1 here; 0 takes a free one, for programs of this user alone."""
        ...

    def require_alive(self) -> None:
        """Ask nothing of the host, and raise where the connection is known to be gone.

        Raises:
            Unreachable: with why.
        """
        ...

    def close(self) -> None:
        """End the connection and what it carries; never raises, may be called twice."""
        ...
