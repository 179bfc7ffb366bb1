"""One call to a host's Docker: a request by a deadline, a bounded answer, or an error that names the host."""

from __future__ import annotations

import http
import http.client
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TypeVar
from urllib.parse import quote, urlencode

from vllm_cluster.kernel.clock import SYSTEM_CLOCK, Clock, Deadline
from vllm_cluster.kernel.debug_log import logged
from vllm_cluster.kernel.docker.connection import SLICE, Connection, Guard, OpenStream, Pool
from vllm_cluster.kernel.docker.rows import RowReader
from vllm_cluster.kernel.docker.tar_stream import TarStream
from vllm_cluster.kernel.errors import CommandFailed, ConnectionLost, DockerError, TimedOut, Unreachable
from vllm_cluster.kernel.held import ONE_HOST, Memory, TooMuch, one_at_a_time
from vllm_cluster.kernel.shell_line import command_line
from vllm_cluster.kernel.text import age, size
from vllm_cluster.wire.reading import MAX_BYTES, RefusedDocument, bounded, document

CALL_SECONDS = 30.0
# Far more than any list or document of Docker's; what comes in pieces (pull, build, files, logs) is bounded there.
MAX_ANSWER = MAX_BYTES
MAX_REFUSAL = 64 << 10
MAX_REASON = 4000
MAX_LINE = 1 << 20
# The commas of texts count: of what a build prints, a line has 32 KiB.
LINE_VALUES = 40_000
# Of each log that is read one is held, and what becomes of it: 64 hosts have 128.
PIECE = 16 << 10
# Bytes a second of what has an end, as of an API's answers: a log of 150 MB may take an hour and more.
SLOWEST = 100_000

_SAFE = ("GET", "HEAD")

T = TypeVar("T")


class RefusedCall(DockerError, CommandFailed):
    """Docker does not do what was asked; `returncode` is the status of its answer."""

    code = "docker-refused"


class NotFound(RefusedCall):
    """Docker has no such container, image, volume or file."""

    code = "not-found"


class NoAnswer(DockerError, TimedOut):
    """Docker did not answer within the deadline."""

    code = "docker-timed-out"


class TooLong(DockerError):
    """Docker's answer is too long: more of it, or slower, than there can be, or more than there is room for."""

    code = "answer-too-long"


class Unreadable(DockerError):
    """Docker answered, and not with what its API promises."""

    code = "unreadable-answer"


@dataclass(frozen=True)
class Call:
    """What is asked of Docker; `what` names it in errors."""

    what: str
    method: str
    path: str
    query: Mapping[str, object] = field(default_factory=dict)
    json: Mapping[str, object] | None = None
    body: bytes | TarStream = b""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    # POST is how Docker starts a command in a container too; what one does is for whoever asks for it to judge.
    reads: bool = False
    # The answer ends with the stream, and not before: a log that is followed, the output of a command.
    whole: bool = False
    # From when all of it is sent until the answer begins, where a deadline for a slow line is longer.
    answer_seconds: float = math.inf

    @property
    def content(self) -> bytes | TarStream:
        """The body as it is sent."""
        return self.body if self.json is None else json.dumps(self.json).encode()

    @property
    def kind(self) -> Mapping[str, str]:
        """The headers that name the kind of the body, and the size of one that is made while it is sent."""
        if not self.json and not self.body:
            return {}
        size = {"Content-Length": str(self.body.size)} if isinstance(self.body, TarStream) else {}
        return size | {"Content-Type": "application/x-tar" if self.json is None else "application/json"}


@dataclass(frozen=True)
class Allowance:
    """What an answer of any length may take until its end: an honest one needs a fraction of it.

    `silent` seconds without a byte; `waiting` seconds in all, and one more for each `SLOWEST` bytes; `most` bytes.
    """

    silent: float
    waiting: float
    most: int


def path(*parts: str) -> str:
    """A path of Docker's API, names and ids quoted; the `/` of an image's name stays."""
    return "".join(f"/{quote(part, safe='/:')}" for part in parts)


class Reply:
    """The body of an answer; every read ends by the call's deadline and raises an error that names the host."""

    def __init__(self, host: str, call: Call, deadline: Deadline) -> None:
        self._host, self._call, self._deadline = host, call, deadline
        self._seconds = min(deadline.left(), call.answer_seconds)
        self._connection: Connection | None = None
        self.date: float | None = None
        self.status = 0

    def send(self, connection: Connection, target: str) -> None:
        """Send the request, and read the beginning of the answer.

        Raises:
            RefusedCall: Docker refused it.
        """
        call = self._call
        self._connection = connection
        with self.failing():
            content, headers = call.content, {**call.kind, **call.headers}
            response = connection.send_request(
                call.method,
                target,
                self._deadline,
                content,
                headers,
                answer_seconds=call.answer_seconds,
                whole=call.whole,
            )
            status, self.date = response.status, _seconds(response.headers.get("Date"))
            self.status = status
        if status >= http.HTTPStatus.BAD_REQUEST:
            reason = _reason(self.read(MAX_REFUSAL))
            text = f"{call.what}: {reason or response.reason} (Docker API {status})"
            refusal = NotFound if status == http.HTTPStatus.NOT_FOUND else RefusedCall
            raise refusal(self._host, text, exit_code=status, stderr=reason)

    def read(self, limit: int) -> bytes:
        """The first `limit` bytes; what comes behind them is not waited for."""
        with self.failing() as connection:
            return connection.read(limit)

    def pieces(self, allowed: Allowance | None = None) -> Iterator[bytes]:
        """What comes, as it comes; where something is `allowed`, by that, and not by the deadline.

        The time that its reader takes in between does not count.

        Raises:
            TooLong: it has more bytes than allowed, or they come too slowly.
        """
        clock, got, waited = self._deadline.clock, 0, 0.0
        while True:
            if allowed:
                self._continue(allowed, got, waited)
            began = clock.monotonic()
            if not (piece := self._piece()):
                return
            waited += clock.monotonic() - began
            got += len(piece)
            yield piece

    def _continue(self, allowed: Allowance, got: int, waited: float) -> None:
        """Read on for as long as is allowed after so many bytes, and so many seconds of waiting for them."""
        left = allowed.waiting + got / SLOWEST - waited
        if got > allowed.most or left <= 0:
            much = f"more than {size(allowed.most)}" if got > allowed.most else f"{size(got)} in {age(waited)}"
            with self.failing():
                raise TooLong(self._host, f"{self._call.what}: its output does not end: {much} came", again=())
        with self.failing() as connection:
            connection.renew(Deadline.after(min(allowed.silent, left), self._deadline.clock))

    def messages(self) -> Iterator[Mapping[str, object]]:
        """The JSON objects of a stream of progress, one a line, none longer than `MAX_LINE`."""
        rest = bytearray()
        for piece in self.pieces():
            *lines, tail = piece.split(b"\n")
            for line in lines:
                yield from self._message(bytes(rest) + line)
                rest.clear()
            rest += tail
            if len(rest) > MAX_LINE:
                raise self.unreadable(f"a line is longer than {MAX_LINE >> 20} MB")
        yield from self._message(bytes(rest))

    def unreadable(self, why: object) -> Unreadable:
        """The error for an answer that is not what Docker's API promises."""
        return Unreadable(self._host, f"{self._call.what}: Docker's answer cannot be read: {str(why)[:200]}", again=())

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn what cannot be made of the answer into an error of the host."""
        try:
            yield
        except TooMuch as error:
            fix = command_line("docker", "system", "df", on=self._host)
            raise TooLong(self._host, f"{self._call.what}: Docker's answer {error}", hint=fix) from error
        except RefusedDocument as error:
            raise self.unreadable(f"{error.field} {error.why}".strip()) from error
        except ValueError as error:
            raise self.unreadable(error) from error

    def _piece(self) -> bytes:
        with self.failing() as connection:
            return connection.read_some(PIECE)

    def _message(self, line: bytes) -> Iterator[Mapping[str, object]]:
        if not line.strip():
            return
        try:
            message = json.loads(bounded(line, MAX_LINE + PIECE, LINE_VALUES))
        except (ValueError, RecursionError) as error:
            raise self.unreadable(error) from error
        if not isinstance(message, dict):
            raise self.unreadable("a line is not an object")
        yield message

    @contextmanager
    def failing(self) -> Iterator[Connection]:
        """Turn what breaks below into an error of the host; the connection serves no other request then."""
        what, connection = self._call.what, self._connection
        try:
            yield connection  # type: ignore[misc]  # None only before it was taken
        except BaseException as error:
            if connection:
                connection.broken = True
            match error:
                case Unreachable():
                    # This client is made over a connection that worked: what was asked before may have happened.
                    raise ConnectionLost(self._host, f"{what}: {error.detail}", hint=error.hint) from error
                case TimeoutError():
                    text = f"{what}: Docker did not answer within {self._seconds:.0f} s"
                    raise NoAnswer(self._host, text, again=()) from error
                case OSError() | EOFError() | ValueError() | http.client.HTTPException():
                    why = (connection.stderr_tail() if connection else "") or error
                    raise ConnectionLost(
                        self._host, f"{what}: the connection to Docker broke: {why}", again=()
                    ) from error
            raise


def _seconds(date: str | None) -> float | None:
    """The Unix time of an HTTP date."""
    try:
        return parsedate_to_datetime(date).timestamp() if date else None
    except (ValueError, OverflowError):
        return None


def _reason(content: bytes) -> str:
    """What Docker gives as the reason of a refusal."""
    text = content.decode("utf-8", "replace")
    with suppress(ValueError, RecursionError):
        parsed = json.loads(bounded(content))
        text = str(parsed.get("message", text)) if isinstance(parsed, dict) else text
    return text[:MAX_REASON].strip()


class Calls:
    """The calls of one host's Docker, in one version of its API. Safe to use from several threads.

    `guard`, where one is set, is called right before each call that may change the host (all but GET and HEAD) is
    sent; what it raises reaches the caller, and nothing was sent.
    """

    def __init__(
        self, host: str, version: str, open_stream: OpenStream, guard: Guard | None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.host, self.guard, self.count = host, guard, 0
        self.now: float | None = None
        # Of the bytes of one answer that is read at once, and where what is made of it counts.
        self.most = MAX_ANSWER
        self.memory: Memory | None = None
        self.pool = Pool(open_stream)
        self._version, self.clock = version, clock

    def after(self, seconds: float) -> Deadline:
        """The moment `seconds` from now."""
        return Deadline.after(seconds, self.clock)

    @contextmanager
    def stream(self, call: Call, deadline: Deadline | None = None) -> Iterator[Reply]:
        """An answer that is read piece by piece."""
        deadline = deadline or self.after(CALL_SECONDS)
        self.count += 1
        reply = Reply(self.host, call, deadline)
        query = {key: value for key, value in call.query.items() if value is not None}
        target = f"/v{self._version}{call.path}" + (f"?{urlencode(query)}" if query else "")
        with logged(self.host, "docker", f"{call.method} {target} ({call.what})", self.clock) as entry:
            with reply.failing():
                connection = self.pool.take(deadline)
            try:
                if self.guard and call.method not in _SAFE and not call.reads:
                    self.guard()
                reply.send(connection, target)
                self.now = reply.date or self.now
                entry.result = f"{reply.status}"
                yield reply
            finally:
                self.pool.give_back(connection)

    def ask(self, call: Call, read: Callable[[object], T], deadline: Deadline | None = None) -> T:
        """What `read` makes of the JSON of the answer.

        Raises:
            Unreadable: it is not JSON, or of another shape than that of Docker's API.
        """
        most, memory = self.most, self.memory or Memory(ONE_HOST)
        with self.stream(call, deadline) as reply:
            content = reply.read(most + 1)
            if len(content) > most:
                raise reply.unreadable(f"it is longer than {size(most)}")
        with reply.reading(), one_at_a_time():
            return memory.keep(read(document(content, "", most) if content else None))

    def rows(self, call: Call, read: Callable[[object], T]) -> tuple[T, ...]:
        """What `read` makes of each row of the list that is the answer.

        Raises:
            Unreadable: as `ask`.
            TooLong: the rows take more memory than there is for one host.
        """
        kept, memory, got = list[T](), self.memory or Memory(ONE_HOST), 0
        reader = RowReader(lambda row: kept.append(memory.keep(read(row))))
        with self.stream(call) as reply:
            while piece := reply.read(SLICE):
                got += len(piece)
                if got > MAX_ANSWER:
                    raise reply.unreadable(f"it is longer than {size(MAX_ANSWER)}")
                with reply.reading():
                    reader.feed(piece)
            with reply.reading():
                reader.feed(b"")
        return tuple(kept)

    def do(self, call: Call, deadline: Deadline | None = None) -> None:
        """Make a call whose answer holds nothing of interest."""
        with self.stream(call, deadline) as reply:
            reply.read(MAX_REFUSAL)
