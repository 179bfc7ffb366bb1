"""A paramiko channel as a byte stream that distinguishes a lost connection from an ended command."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import ClassVar, cast

import fabric
import paramiko

from vllm_cluster.kernel.clock import LATE_SECONDS, SYSTEM_CLOCK, Deadline, was_stopped
from vllm_cluster.kernel.errors import ConnectionLost
from vllm_cluster.kernel.transport.base import MAX_TAIL, Result, time_to_send
from vllm_cluster.kernel.transport.carrier import lost
from vllm_cluster.kernel.transport.fabric.keepalive import BROKEN, KeepaliveSocket, KeepaliveTransport
from vllm_cluster.kernel.transport.kept import Kept

# What a packet holds: paramiko copies the rest of the data once for each packet, so it never gets more.
PACKET = 32_000
_POLL_SECONDS = 0.25
# What came while this process was stopped is read within so long.
AWAKE_SECONDS = 2.0
# The exit code comes right after the end of the output.
EXIT_SECONDS = 5.0
# Of a command's output, what is read without being kept: until the command had to end it took 45 s of a core.
MAX_UNKEPT = 64 << 20


class _Endless(paramiko.SSHException):
    """A command printed more than any does."""


class FabricConnection:
    """An authenticated connection, held by Fabric: its session, its wire and the name that errors call it by."""

    # What who has a connection catches, without Fabric.
    BROKEN: ClassVar = BROKEN
    REFUSED: ClassVar = paramiko.ChannelException

    def __init__(self, host: str, where: str, connection: fabric.Connection, wire: KeepaliveSocket) -> None:
        self.host, self.where, self.wire = host, where, wire
        self.session = cast(KeepaliveTransport, connection.transport)
        self._connection = connection

    def alive(self) -> bool:
        """Whether the connection is still open."""
        return self.session.is_active()

    def close(self) -> None:
        """End the connection; that to a jump host stays."""
        with contextlib.suppress(*BROKEN):
            self._connection.client.close()

    def open_stream(self, channel: paramiko.Channel, doing: str, on_close: Callable[[], None]) -> ChannelStream:
        """Return a channel as a byte stream."""
        return ChannelStream(self, channel, doing, on_close)

    def collect(
        self, channel: paramiko.Channel, stdin: bytes, deadline: Deadline, out: Kept, err: Kept
    ) -> Result | None:
        """As `collect` of this module; a connection without end to its output is closed."""
        try:
            return collect(channel, stdin, deadline, out, err)
        except _Endless:
            self.wire.failure = f"it printed more than {MAX_UNKEPT >> 20} MiB"
            self.close()
            raise

    def lost(self, doing: str) -> ConnectionLost:
        """The error for a connection that broke while `doing` was under way."""
        return lost(self.host, self.where, doing, self.wire.failure or "it was closed")


class _Arrival:
    """Set by paramiko's thread when bytes of a channel, or its end, are there.

    Not the channel's `fileno`: that pipe is closed with the channel while paramiko's thread may be writing to it.
    Whole connections ended by it ("Bad file descriptor"); it could have written into another file of that number.
    """

    def __init__(self, channel: paramiko.Channel) -> None:
        self._event = threading.Event()
        self.set = self._event.set
        for buffer in (channel.in_buffer, channel.in_stderr_buffer):
            buffer.set_event(self)  # type: ignore[arg-type]  # as any event: it is set, and cleared

    def clear(self) -> None:
        """Nothing: paramiko clears where one buffer is empty, and the other may have bytes."""

    def expect(self) -> None:
        """Begin to wait; called before looking at what is there."""
        self._event.clear()

    def wait(self, seconds: float | None) -> bool:
        """Whether something came since `expect`."""
        return self._event.wait(seconds)


class ChannelStream:
    """Both directions of a channel; its standard error is kept short and never blocks the command."""

    def __init__(
        self, link: FabricConnection, channel: paramiko.Channel, doing: str, on_close: Callable[[], None]
    ) -> None:
        self._link = link
        self._channel = channel
        self._doing = doing
        self._on_close = on_close
        self._timeout: float | None = None
        self._tail = bytearray()
        self._tail_lock = threading.Lock()
        self._close_lock = threading.Lock()
        self._closed = False
        self._arrival = _Arrival(channel)

    def settimeout(self, seconds: float | None, /) -> None:
        """How long recv and sendall may see no progress."""
        self._timeout = seconds

    def sendall(self, data: bytes, /) -> None:
        """Send it all; a command that floods its standard error meanwhile is not let to stall."""
        rest, progress = memoryview(data), time.monotonic()
        due = time_to_send(self._timeout, len(rest))
        while rest:
            limit = self._timeout
            wait = _POLL_SECONDS if limit is None else max(min(limit, _POLL_SECONDS), 0.001)
            self._channel.settimeout(wait)
            began = SYSTEM_CLOCK.monotonic()
            try:
                sent = self._channel.send(bytes(rest[:PACKET]))
            except TimeoutError:
                self._drain()
                if was_stopped(began, wait):
                    progress, due = time.monotonic(), time_to_send(limit, len(rest))
                if limit is not None and time.monotonic() - progress >= limit:
                    raise
                continue
            except BROKEN as error:
                raise self._broken() from error
            if not sent:
                raise self._broken()
            rest, progress = rest[sent:], time.monotonic()
            if was_stopped(began, wait):
                due = time_to_send(limit, len(rest))
            if rest and not due.left():
                raise TimeoutError(f"{self._link.host}: {self._doing} takes its input too slowly")

    def recv(self, size: int, /) -> bytes:
        """At most `size` bytes; empty when the command has ended its output."""
        limit = None if self._timeout is None else time.monotonic() + self._timeout
        while True:
            self._arrival.expect()
            # Asked before the buffer is: what came before the end is in the buffer by then.
            ended, closed = bool(self._channel.eof_received), self._channel.closed
            self._drain()
            if self._channel.recv_ready():
                return self._channel.recv(size)
            if ended or self._closed:
                return b""
            if closed:
                if self._link.alive():
                    return b""
                raise self._link.lost(self._doing)
            left = None if limit is None else limit - time.monotonic()
            if left is not None and left <= 0:
                if left > -LATE_SECONDS:
                    raise TimeoutError(f"{self._link.host}: no bytes from {self._doing} within {self._timeout} s")
                # paramiko's thread wakes up beside this one.
                limit, left = time.monotonic() + AWAKE_SECONDS, AWAKE_SECONDS
            self._arrival.wait(left)

    def shutdown_write(self) -> None:
        """Close the input of the command."""
        try:
            self._channel.shutdown_write()
        except BROKEN as error:
            raise self._broken() from error

    def stderr_tail(self) -> str:
        """The last lines of standard error."""
        self._drain()
        return self._tail.decode("utf-8", "replace").strip()

    def exit_code(self) -> int | None:
        """How the command ended; None where the host sent none: a signal ended it, or the connection broke."""
        self._channel.status_event.wait(EXIT_SECONDS)
        return self._channel.exit_status if self._channel.exit_status >= 0 else None

    def close(self) -> None:
        """End the channel; the command sees its input end."""
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
        with contextlib.suppress(*BROKEN):
            self._channel.close()
        self._on_close()

    def _drain(self) -> None:
        with self._tail_lock:
            while self._channel.recv_stderr_ready():
                self._tail += self._channel.recv_stderr(PACKET)
                del self._tail[:-MAX_TAIL]

    def _broken(self) -> Exception:
        if not self._link.alive():
            return self._link.lost(self._doing)
        return BrokenPipeError(f"{self._link.host}: {self._doing} takes no more input: {self.stderr_tail()}")


def collect(channel: paramiko.Channel, stdin: bytes, deadline: Deadline, out: Kept, err: Kept) -> Result | None:
    """Feed a started command, gather what it prints, and wait for its end; None when the deadline passed first.

    `out` and `err` take its output as it comes.
    """
    _feed(channel, stdin, deadline)
    unkept = 0
    arrival = _Arrival(channel)
    while True:
        arrival.expect()
        ended = bool(channel.eof_received) or channel.closed
        while channel.recv_ready():
            unkept += out.add(channel.recv(PACKET))
        while channel.recv_stderr_ready():
            unkept += err.add(channel.recv_stderr(PACKET))
        if unkept > MAX_UNKEPT:
            raise _Endless
        if ended:
            break
        if not arrival.wait(deadline.left()) and not deadline.left():
            return None
    if not channel.status_event.wait(deadline.left()):
        return None
    return Result(channel.exit_status, out.whole(), err.whole())


def _feed(channel: paramiko.Channel, stdin: bytes, deadline: Deadline) -> None:
    if len(stdin) <= PACKET:
        # One packet fits into the window that every server opens with and into the socket's buffer.
        _send(channel, stdin, deadline)
    else:
        threading.Thread(target=_send, args=(channel, stdin, deadline), daemon=True).start()


def _send(channel: paramiko.Channel, stdin: bytes, deadline: Deadline) -> None:
    rest = memoryview(stdin)
    # A command may end without reading its input, so nothing that breaks here is an error by itself.
    with contextlib.suppress(*BROKEN):
        # Not sendall: its limit is for each piece that the host takes, and a host may take a byte at a time.
        while rest and (left := deadline.left()):
            channel.settimeout(left)
            if not (sent := channel.send(bytes(rest[:PACKET]))):
                return
            rest = rest[sent:]
        if not rest:
            channel.shutdown_write()
