"""Runs a program elsewhere: in a node, in a temporary container or on a host, with JSON lines in both directions."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from typing import TypeVar

from vllm_cluster.kernel.clock import Deadline, Due
from vllm_cluster.kernel.docker.temporary import TemporaryContainer, temporary_name
from vllm_cluster.kernel.errors import CommandFailed, ConnectionLost, HostError, TimedOut
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.text import end_of
from vllm_cluster.kernel.transport.base import Stream
from vllm_cluster.wire.reading import RefusedDocument, bounded, convert

MAX_LINE = 64 << 10
# What a program may print in all: 256 hosts with every port of every other closed take less than a tenth of it.
MAX_BYTES = 4 << 20
# What a message counts for at least: of 4 MiB a million empty ones took 105 MB, and 8 s.
MIN_MESSAGE = 40
# What is kept of the lines that are not messages.
MAX_PRINTED = 64 << 10
PIECE = 64 << 10
SEND_SECONDS = 10.0
# For a busy host to start what then ends itself.
BEGIN_SECONDS = 60.0
# A disk of the host that takes nothing for as long.
STUCK_SECONDS = 120.0
END_SECONDS = 10.0
# For a busy host to start what then ends itself.
BEGIN_SECONDS = 60.0
# What docker itself prints where it starts nothing; 20.10 names no daemon where there is no such container.
_REFUSED = re.compile(r"^Error(?: response from daemon)?: (.+)", re.MULTILINE)

Message = Mapping[str, object]
T = TypeVar("T")


@dataclass(frozen=True)
class RemoteProgram:
    """What to run, by a name for errors; one that `changes` the host is sent under the lease, and ends with it.

    It has so many `seconds` in all, beside what each wait allows: a host that gives a byte now and then ends no wait.
    One that is read line by line for as long as it runs has no `max_bytes`.
    """

    name: str
    argv: tuple[str, ...]
    seconds: float
    changes: bool = False
    max_line: int = MAX_LINE
    max_bytes: float = MAX_BYTES


def python(where: str, name: str, *arguments: str, seconds: float, needs: Sequence[str] = ()) -> RemoteProgram:
    """The program of that name in the package `where`, which ends with its input and after so many seconds.

    `needs` are modules of vcluster that it imports, and that are sent along: each after those that it imports itself.
    """
    return python_source(name, source(where, name), *arguments, seconds=seconds, needs=needs)


def python_source(name: str, text: str, *arguments: str, seconds: float, needs: Sequence[str] = ()) -> RemoteProgram:
    """As `python`, for this source."""
    modules = json.dumps({f"vllm_cluster.{one}": source(*one.rsplit(".", 1)) for one in needs})
    bounded = source("kernel.hosts.on_host", "bounded")
    argv = ("python3", "-u", "-c", bounded, f"{seconds:g}", name, text, modules, *arguments)
    return RemoteProgram(name, argv, seconds + BEGIN_SECONDS)


def source(where: str, name: str) -> str:
    """The text of the program of that name in the package `where`, for a place that ends it by itself."""
    return files(f"vllm_cluster.{where}").joinpath(f"{name}.py").read_text()


@dataclass(frozen=True)
class InNode:
    """In a container that runs."""

    container: str


@dataclass(frozen=True)
class OnHost:
    """On the host itself."""


Place = InNode | TemporaryContainer | OnHost


@dataclass(frozen=True)
class Finished:
    """How a program ended: its exit code, its messages, and the end of what else it printed."""

    code: int
    messages: tuple[Message, ...]
    printed: str
    stderr: str

    @property
    def text(self) -> str:
        """What it printed beside its messages."""
        return "\n".join(filter(None, (self.printed.strip(), self.stderr.strip())))


class RunningProgram:
    """A program under way; leaving it ends the program. One thread may send while another reads."""

    def __init__(
        self,
        host: str,
        program: RemoteProgram,
        stream: Stream,
        whole: Due,
        *,
        leave: Callable[[bool], None] = lambda _over: None,
        container: str = "",
    ) -> None:
        """`whole` is for all of it; `leave` gets at the end whether the program has ended well by itself."""
        self.host, self.program, self.container = host, program, container
        self._stream, self._whole, self._leave = stream, whole, leave
        self._lines: deque[bytes] = deque()
        self._rest, self._printed = b"", bytearray()
        self._received = 0
        self._over = False
        # How it ended; None before that, and where that is not known.
        self.code: int | None = None

    def send(self, row: Message) -> None:
        """Send one object.

        Raises:
            HostError: it cannot be sent any more.
        """
        self.send_bytes(json.dumps(row).encode() + b"\n", SEND_SECONDS)

    def send_bytes(self, data: bytes, seconds: float = STUCK_SECONDS) -> None:
        """Send what the program takes as it is, for as long as it takes some.

        Raises:
            HostError: as `send`.
        """
        try:
            self._stream.settimeout(seconds)
            self._stream.sendall(data)
        except (OSError, EOFError) as error:
            raise self._ended(str(error) or type(error).__name__) from error

    def next(self, deadline: Due) -> Message:
        """The next object.

        Raises:
            HostError: none comes any more, or not by the deadline, or too much.
        """
        for row in self.messages(deadline):
            return row
        raise self._ended("it has ended")

    def messages(self, deadline: Due) -> Iterator[Message]:
        """Each object, until the program ends; other lines are a login shell's greetings, or of an image's start-up.

        Raises:
            HostError: as `next`.
        """
        for line in self.lines(deadline):
            row = message_in(line)
            if row is None:
                self._printed += line + b"\n"
                if len(self._printed) > 2 * MAX_PRINTED:  # not at every line: each cut copies what is left
                    del self._printed[:-MAX_PRINTED]
            else:
                self._received += max(0, MIN_MESSAGE - len(line))
                yield row

    def read(self, kind: type[T], deadline: Due) -> T:
        """Read the next object as this dataclass.

        Raises:
            HostError: as `next`, or it has another shape.
        """
        return read_message(kind, self.host, self.program.name, self.next(deadline))

    def lines(self, deadline: Due) -> Iterator[bytes]:
        """Each line, until the program ends.

        Raises:
            HostError: as `next`.
        """
        while True:
            while self._lines:
                yield self._lines.popleft()
            if self._over:
                return
            data = self._more(deadline)
            # Split once: to cut off one line at a time copies what is left for each.
            *lines, self._rest = (self._rest + data).split(b"\n")
            if not data and self._rest:
                lines, self._rest = [self._rest], b""
            self._lines.extend(lines)

    def _more(self, deadline: Due) -> bytes:
        if len(self._rest) > self.program.max_line or self._received > self.program.max_bytes:
            raise HostError(self.host, "its program printed too much", again=())
        if not (left := min(deadline.left(), self._whole.left())):
            raise TimedOut(self.host, "its program did not answer in time", again=())
        self._stream.settimeout(left)
        try:
            data = self._stream.recv(PIECE)
        except TimeoutError:
            raise TimedOut(self.host, "its program did not answer in time", again=()) from None
        except (OSError, EOFError) as error:
            raise ConnectionLost(self.host, f"the connection to its program broke: {error}", again=()) from error
        if not data:
            # Before the stream is closed: a host may send it after the end of the output.
            self._over, self.code = True, self._stream.exit_code()
        self._received += len(data)
        return data

    def _ended(self, why: str) -> HostError:
        stderr = end_of(self._stream.stderr_tail(), 500)
        # Where it took no more input, nothing has been read of its end yet.
        self.code = self.code if self._over else self._stream.exit_code()
        return HostError(self.host, f"its program does not run: {stderr or why}", again=())

    def stderr_tail(self) -> str:
        """The last lines that it wrote to standard error."""
        return self._stream.stderr_tail()

    def finish(self, deadline: Due) -> Finished:
        """Read the program to its end.

        Raises:
            CommandFailed: Docker did not start it, in Docker's words.
            HostError: it does not end by the deadline, or how it ended is not known.
        """
        messages = tuple(self.messages(deadline))
        code, stderr = self.code, self._stream.stderr_tail()
        if code is None:
            raise ConnectionLost(self.host, "the connection to its program broke: it was killed", again=())
        refused = _REFUSED.search(stderr)
        if code and refused and not messages:
            raise CommandFailed(
                self.host, f"{self.program.name}: {refused[1]}", exit_code=code, stderr=stderr, again=()
            )
        return Finished(code, messages, self._printed.decode("utf-8", "replace"), stderr)

    def end(self, deadline: Deadline) -> None:
        """End the program, and wait until it has gone: docker goes after its container."""
        with suppress(HostError, OSError, EOFError):
            self._stream.shutdown_write()
            while not self._over:
                self._rest = b""
                self._more(deadline)
        self.close()

    def close(self) -> None:
        """End the program: it lives no longer than this."""
        self._stream.close()
        # Also after a bad end: docker may have ended, and not its container.
        with suppress(HostError):
            self._leave(self._over and self.code == 0)

    def __enter__(self) -> RunningProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start(connection: HostConnection, program: RemoteProgram, place: Place, deadline: Deadline) -> RunningProgram:
    """Start a program there; the deadline is for the start alone.

    Raises:
        HostError: it cannot be started.
    """
    whole = connection.runtime.after(program.seconds)
    match place:
        case OnHost():
            opened = connection.open_changing if program.changes else connection.open_stream
            return RunningProgram(connection.name, program, opened(program.argv, deadline), whole)
        case InNode(container):
            argv = ("docker", "exec", "--interactive", container, *program.argv)
            opened = connection.open_changing if program.changes else connection.open_stream
            return RunningProgram(connection.name, program, opened(argv, deadline), whole)
    name = temporary_name(place.owner.cluster, place.kind)
    try:
        connection.temporary.create(name, place.body(program.argv))
        stream = connection.open_changing(("docker", "start", "--attach", "--interactive", name), deadline)
    except BaseException:
        # Also where the answer to the create did not arrive: nothing else ends one that was not started.
        with suppress(HostError):
            connection.temporary.remove(name)
        raise

    def leave(over: bool) -> None:
        (connection.temporary.forget if over else connection.temporary.remove)(name)

    return RunningProgram(connection.name, program, stream, whole, leave=leave, container=name)


def run_program(
    connection: HostConnection, program: RemoteProgram, place: Place, deadline: Deadline, first: Message | None = None
) -> Finished:
    """Run a program there to its end; `first` is its first message, which is the place for a secret.

    Raises:
        HostError: as `RunningProgram.finish`.
    """
    with start(connection, program, place, deadline) as running:
        if first is not None:
            running.send(first)
        return running.finish(deadline)


def read_message(kind: type[T], host: str, program: str, row: Message) -> T:
    """Read what a program on a host printed as this dataclass.

    Raises:
        HostError: it has another shape; with the host, the program, the field and what holds for that.
    """
    try:
        return convert(kind, row, program)
    except RefusedDocument as refused:
        raise HostError(
            host, f"{program}: its output cannot be read: {refused.field} {refused.why}", again=()
        ) from None


def message_in(line: bytes) -> Message | None:
    """The message that a line is; None where it is something else that was printed.

    Our programs print ASCII. Python takes four bytes for each character of a line in which one is rare.
    """
    if not line.isascii() or not line.lstrip().startswith(b"{"):
        return None
    try:
        value = json.loads(bounded(line))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
