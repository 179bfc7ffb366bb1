"""A command of this machine as a stream, or run to its end: what the local and the openssh carriers share."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Self, cast

from vllm_cluster.kernel.clock import SYSTEM_CLOCK, Deadline, was_stopped
from vllm_cluster.kernel.transport.base import MAX_OUTPUT, MAX_TAIL, Result, time_to_send
from vllm_cluster.kernel.transport.kept import Kept

CHUNK = 65_536
GRACE_SECONDS = 1.0


def run_process(
    argv: Sequence[bytes | str],
    stdin: bytes,
    deadline: Deadline,
    cwd: str | None = None,
    *,
    most: int = MAX_OUTPUT,
    mark: bytes = b"",
    running: set[subprocess.Popen[bytes]] | None = None,
) -> Result | None:
    """Run a command to its end; None when the deadline passed first, and then it is gone with what it started.

    Of each output it keeps so many bytes behind the mark. While it runs it is in `running`, for who ends it.
    """
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        cwd=cwd,
    )
    running = set() if running is None else running
    running.add(process)
    with process:
        try:
            # Not communicate: it keeps all that comes.
            ended = _talk(process, stdin, deadline, out := Kept(mark, most), err := Kept(mark, most))
        except BaseException:
            stop(process)
            raise
        finally:
            running.discard(process)
        if not ended:
            stop(process)
            return None
    code = process.returncode
    return Result(code if code >= 0 else 128 - code, out.whole(), err.whole())


def _talk(process: subprocess.Popen[bytes], stdin: bytes, deadline: Deadline, out: Kept, err: Kept) -> bool:
    """Feed a process and gather what it prints; return whether it ended by the deadline."""
    assert process.stdin and process.stdout and process.stderr  # noqa: S101 - each was asked for as a pipe
    kept = {process.stdout: out, process.stderr: err}
    rest = memoryview(stdin)
    with selectors.DefaultSelector() as ready:
        for pipe in (process.stdin, *kept):
            os.set_blocking(pipe.fileno(), False)
            ready.register(pipe, selectors.EVENT_WRITE if pipe is process.stdin else selectors.EVENT_READ)
        while ready.get_map():
            if not deadline.left():
                return False
            for key, _ in ready.select(deadline.left()):
                pipe = cast(IO[bytes], key.fileobj)
                if pipe is process.stdin:
                    rest = _fed(pipe, rest)
                    more = bool(rest)
                else:
                    data = os.read(pipe.fileno(), CHUNK)
                    kept[pipe].add(data)
                    more = bool(data)
                if not more:
                    ready.unregister(pipe)
                    pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(deadline.left(), 0.001))
    return process.returncode is not None


def _fed(pipe: IO[bytes], rest: memoryview) -> memoryview:
    try:
        return rest[os.write(pipe.fileno(), rest[:CHUNK]) :] if rest else rest
    except BlockingIOError:
        return rest
    except BrokenPipeError:
        return rest[:0]  # a command may end without reading its input


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and its group: asked first, then killed."""
    end(process)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def end(process: subprocess.Popen[bytes]) -> None:
    """As `stop`, of one whose output another thread reads: to its end, which is then."""
    for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, GRACE_SECONDS)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)


class ProxySocket:
    """The socket to a ProxyCommand; closing it ends the command."""

    def __init__(self, sock: socket.socket, process: subprocess.Popen[bytes]) -> None:
        self._sock = sock
        self._process = process
        self.recv = sock.recv
        self.send = sock.send
        self.settimeout = sock.settimeout

    def close(self) -> None:
        """End the command; may be called twice."""
        self._sock.close()
        stop(self._process)


def proxy_socket(command: str) -> ProxySocket:
    """Start a ProxyCommand, as ssh does, and speak through it."""
    own, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            ["sh", "-c", f"exec {command}"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return ProxySocket(own, process)


class ErrorOutput:
    """Standard error of a process, read as it comes: its `first` bytes are kept, and its last `MAX_TAIL`.

    A host decides how much ssh prints: a file of it grew by 70 MB a second. `sink` is for the process. With a `path` a
    process that opens that as a file is read; then the end comes once the sink is closed, too.
    """

    def __init__(self, first: int = 0, path: Path | None = None) -> None:
        pipe, self.sink = os.pipe() if path is None else _named_pipe(path)
        self._most, self._first, self._tail = first, bytearray(), bytearray()
        self._reader = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the sink to what was started meanwhile."""
        self.close()

    def close(self) -> None:
        """Close the sink; may be called twice."""
        sink, self.sink = self.sink, -1
        if sink >= 0:
            os.close(sink)

    def join(self, seconds: float) -> None:
        """Wait for its end."""
        self._reader.join(seconds)

    def text(self) -> str:
        """What was kept."""
        return (self._first + self._tail).decode("utf-8", "replace").strip()

    def _read(self, end: int) -> None:
        # The one owner of this end: a process that outlives its parent may hold the other for long.
        with open(end, "rb", buffering=0) as pipe:
            while data := pipe.read(CHUNK):
                room = self._most - len(self._first)
                self._first += data[:room]
                self._tail += data[room:]
                del self._tail[:-MAX_TAIL]


def _named_pipe(path: Path) -> tuple[int, int]:
    """Make a pipe with a name; its two ends."""
    os.mkfifo(path, 0o600)
    # Without waiting for who writes; what is read later waits for what is written.
    end = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    sink = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    os.set_blocking(end, True)
    return end, sink


class ProcessStream:
    """Both directions of a process, over a socket pair; standard error is read on the side and kept short."""

    def __init__(
        self,
        argv: Sequence[bytes | str],
        check_end: Callable[[int], None],
        on_close: Callable[[], None],
        cwd: str | None = None,
    ) -> None:
        """`check_end` gets the exit code when the output has ended, and raises if the command did not end by itself."""
        self._check_end = check_end
        self._on_close = on_close
        self._close_lock = threading.Lock()
        self._closed = False
        self._sock, theirs = socket.socketpair()
        try:
            with theirs, ErrorOutput() as self._errors:
                self._process = subprocess.Popen(
                    argv,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=self._errors.sink,
                    start_new_session=True,
                    cwd=cwd,
                )
        except BaseException:
            self._sock.close()
            raise

    def settimeout(self, seconds: float | None, /) -> None:
        """How long recv and sendall may see no progress."""
        self._sock.settimeout(seconds)

    def sendall(self, data: bytes, /) -> None:
        """Send it all."""
        rest, stall = memoryview(data), self._sock.gettimeout()
        due = time_to_send(stall, len(rest))
        try:
            while rest:
                began = SYSTEM_CLOCK.monotonic()
                rest = self._send(rest, began, stall)
                if was_stopped(began, stall):
                    due = time_to_send(stall, len(rest))
                if rest and not due.left():
                    raise TimeoutError("the command takes its input too slowly")
        except TimeoutError:
            raise
        except OSError as error:
            self._ended()
            raise BrokenPipeError(f"the command takes no more input: {self.stderr_tail()}") from error

    def _send(self, rest: memoryview, began: float, stall: float | None) -> memoryview:
        # Not sendall: its time-out is for the whole, not for a stall.
        try:
            return rest[self._sock.send(rest) :]
        except TimeoutError:
            if not was_stopped(began, stall):
                raise
            return rest

    def recv(self, size: int, /) -> bytes:
        """At most `size` bytes; empty when the command has ended its output."""
        try:
            data = self._sock.recv(size)
        except ConnectionResetError:
            # The process went with our bytes unread.
            data = b""
        if not data and not self._closed:
            self._ended()
        return data

    def wait_for_output(self, seconds: float) -> None:
        """Wait for the first byte, which is left to be read, or for the end; or not longer than this.

        Raises:
            HostError: the command did not end by itself.
        """
        with selectors.DefaultSelector() as ready:
            ready.register(self._sock, selectors.EVENT_READ)
            if not ready.select(seconds):
                return
        with contextlib.suppress(OSError):
            if self._sock.recv(1, socket.MSG_PEEK):
                return
        self._ended()

    def shutdown_write(self) -> None:
        """Close the input of the command."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def stderr_tail(self) -> str:
        """The last lines of standard error."""
        return self._errors.text()

    def exit_code(self) -> int | None:
        """How the process ended; of one that a signal ended 128 and the signal's number, as a shell has it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(GRACE_SECONDS)
            return code if code >= 0 else 128 - code
        return None

    def close(self) -> None:
        """End the process."""
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        stop(self._process)
        self._on_close()

    def _ended(self) -> None:
        # Output may end before the process does (it closed it, or is on its way out).
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._errors.join(GRACE_SECONDS)
            self._check_end(self._process.wait(GRACE_SECONDS))
