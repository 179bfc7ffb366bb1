"""Reads all logs of one host side by side, and reads on after a cut, a restart or a new container."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Annotated

from vllm_cluster.features.logs.lines import GROUP, SECOND, VLLM, Line, LogRequest, copied_from, is_poll, split_source
from vllm_cluster.features.logs.merge import LogMerge
from vllm_cluster.features.logs.orders import OrderFeed
from vllm_cluster.features.logs.rank_names import RankNames
from vllm_cluster.features.logs.row_limit import RowLimit
from vllm_cluster.kernel.docker.calls import Allowance, TooLong
from vllm_cluster.kernel.docker.log_frames import LogFrames, OutputFrames, Position, StampedLine, Stamps
from vllm_cluster.kernel.docker.streams import SILENT_SECONDS, WAITING_SECONDS
from vllm_cluster.kernel.errors import CommandFailed, ConnectionLost, HostError, TimedOut, Unreachable, VclusterError
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.handle import NodeHandle, open_node
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.text import age
from vllm_cluster.wire.reading import convert, document
from vllm_cluster.wire.values import Count, Name, between, brief, shaped

# The text of one line of a file: 64 KiB, and how much was cut off. With an emoji in it each character takes four bytes.
MAX_TEXT = 66_000
# With its file, time and place, as JSON has a byte that is not UTF-8: in six characters.
MAX_ROW = 6 * MAX_TEXT + 200
# Bytes of rows that are read at once, if they are not one row: of rows with an emoji each takes four times as much.
PORTION = 16 << 10
# Each is remembered. Ray writes two for each process that it starts.
MAX_FILES = 10_000
# Of ranks that print all that NCCL does, for weeks: a host that prints without end would keep `logs` going.
ALL_FILES = Allowance(SILENT_SECONDS, WAITING_SECONDS, 2 << 30)
# Whether what a rank printed at an address, of which this log has a copy, is read from that rank's own file.
Covered = Callable[[object, str], bool]
# A session, and a file of it with two ids of 56 digits: 170 characters.
FileName = Annotated[str, shaped("[!-~]{1,255}", "the name of a file of Ray's")]


class ContainerFeed:
    """The log of a node's container; lines of a rank whose own log is `covered` are left out of it."""

    def __init__(self, node: NodeHandle, asked: LogRequest, merge: LogMerge, covered: Covered) -> None:
        self._node, self._asked, self._merge, self._covered = node, asked, merge, covered
        self._position, self._stamps = Position(), Stamps()
        self._names = RankNames()
        self._grep = asked.grep.encode()
        self._after = 0

    def read(self, offset: int, until: int | None, begun: Callable[[], None]) -> None:
        """Read to the end: of the log, or of the connection; called again, it reads on where that broke.

        `offset` is how far the host's clock is ahead (ns); `until` leaves out what came later, by that clock; `begun`
        is called once the log is being read.

        Raises:
            HostError: it cannot be read, or the connection broke.
        """
        since = _since(self._node, self._asked, offset)
        if self._asked.rank is not None:
            # Which process a rank is has been printed when it began.
            self._after, since = self._after or since or 0, None
        since = self._position.resume() or since
        frames, streams = LogFrames(), self._node.connection.docker.streams
        limit = RowLimit(self._node.host, "the log of its node", follow=self._asked.follow)
        with streams.log(self._node.name, since=since, until=until, follow=self._asked.follow) as pieces:
            begun()
            for piece in pieces:
                try:
                    fresh = limit.counted(self._position.fresh(frames.feed(piece)))
                    lines, seen = self._chosen(fresh, offset), self._stamps(fresh[-1][0]) - offset if fresh else None
                except ValueError as error:
                    raise HostError(self._node.host, f"logs: Docker's log cannot be read: {error}", again=()) from error
                self._merge.put(self, lines, seen)

    def _chosen(self, lines: Sequence[StampedLine], offset: int) -> list[Line]:
        host, stamps, sources, grep = self._node.host, self._stamps, self._asked.sources, self._grep
        asked = self._asked.rank
        chosen: list[Line] = []
        for stamp, raw in lines:
            source, replica, text = split_source(raw)
            if source not in sources or not self._asked.of(replica):
                continue
            rank = self._names.rank(text, replica) if source == VLLM else None
            if (grep and grep not in text) or (asked is not None and (rank != asked or stamps(stamp) < self._after)):
                continue
            if not self._asked.polls and is_poll(source, text):
                continue
            if text[:10] == b"(RayWorker" and (at := copied_from(text)) is not None and self._covered(self, at):
                continue
            chosen.append(Line(stamps(stamp) - offset, host, source, text.decode("utf-8", "replace"), rank, replica))
        return chosen


class FileFeed:
    """Ray's files in a node: what each of its ranks prints, or what Ray itself does."""

    def __init__(self, node: NodeHandle, asked: LogRequest, merge: LogMerge, *, group: bool) -> None:
        self._node, self._asked, self._merge, self._group = node, asked, merge, group
        self._offsets: dict[str, int] = {}
        self._skip: tuple[str, ...] | None = None
        self._since: int | None = None
        # When the last line was written that was read.
        self._seen: int | None = None

    def read(self, offset: int, until: int | None, begun: Callable[[], None]) -> None:
        """As `ContainerFeed.read`."""
        self._since = self._since or _since(self._node, self._asked, offset)
        asked: dict[str, object] = {"follow": self._asked.follow, "previous": self._asked.previous}
        asked |= {"rank": self._asked.rank, "group": self._group, "since": self._since}
        asked |= {"offsets": self._offsets, "skip": self._skip}
        script = files("vllm_cluster.features.logs.on_host").joinpath("log_tail.py").read_text()
        argv = ["python3", "-c", script, json.dumps(asked)]
        allowed = None if self._asked.follow else ALL_FILES
        what = "the files of Ray" if self._group else "the files of its ranks"
        limit = RowLimit(self._node.host, what, follow=self._asked.follow)
        with self._node.connection.docker.streams.exec(self._node.name, argv, allowed=allowed) as running:
            frames, names = OutputFrames(), dict[int, _File]()
            try:
                for rows in map(limit.counted, _rows(frames, running.output())):
                    if not names:
                        begun()
                    lines = [line for row in rows if (line := self._line(_row(row), names, offset))]
                    self._merge.put(self, lines, self._seen)
            except ValueError as error:
                raise _unreadable(self._node.host, error) from error
            if not self._asked.follow and (code := running.code()):
                text = f"logs: the files of its ranks cannot be read: exit code {code}: {frames.errors()}"
                raise CommandFailed(self._node.host, text, exit_code=code, stderr=frames.errors(), again=())

    def _line(self, row: _Skipped | _File | _Row, names: dict[int, _File], offset: int) -> Line | None:
        if isinstance(row, _Skipped):
            self._skip = row.skip
            return None
        if isinstance(row, _File):
            if len(names) >= MAX_FILES or len(self._offsets) >= MAX_FILES:
                raise _unreadable(self._node.host, f"more than {MAX_FILES} files")
            names[row.file] = row
            return None
        number, at, end, text = row.line
        self._seen = at - offset
        if (file := names.get(number)) is None:
            raise _unreadable(self._node.host, "a line of a file without a name")
        self._offsets[file.name] = end
        if self._asked.grep not in text:
            return None
        stem = file.name.rpartition("/")[2].rpartition(".")[0]
        # A process of Ray's that has not become a rank yet, or never will.
        source = GROUP if self._group else VLLM if file.rank is not None else f"pid {stem.rpartition('-')[2]}"
        return Line(at - offset, self._node.host, source, text, file.rank)


Feed = ContainerFeed | FileFeed | OrderFeed


@dataclass(frozen=True)
class _Skipped:
    """The sessions of Ray that are not read."""

    skip: tuple[Name, ...]


@dataclass(frozen=True)
class _File:
    """A file whose lines come; `rank` is None where no rank has written it yet."""

    file: Count
    name: FileName
    rank: Count | None


@dataclass(frozen=True)
class _Row:
    """A line: the number of its file, when it was written (ns), where it ends there, and its text, every byte of it."""

    line: tuple[Count, Annotated[int, between(0, 1 << 63)], Count, Annotated[str, brief(MAX_TEXT)]]


def _rows(frames: OutputFrames, output: Iterator[bytes]) -> Iterator[Sequence[bytes]]:
    """The rows that the program in a container prints, as they come.

    Raises:
        ValueError: it is not what that program prints.
    """
    rest = b""
    for piece in output:
        rest += frames.feed(piece)
        while end := rest.rfind(b"\n", 0, PORTION) + 1 or rest.find(b"\n") + 1:
            yield rest[: end - 1].split(b"\n")
            rest = rest[end:]
        if len(rest) > MAX_ROW:
            raise ValueError("a line without an end")


def _unreadable(host: str, why: object) -> HostError:
    return HostError(host, f"logs: what the program in its container printed cannot be read: {why}", again=())


def _row(line: bytes) -> _Skipped | _File | _Row:
    found = document(line, "a row", MAX_ROW)
    if isinstance(found, list):
        return convert(_Row, {"line": found}, "a row")
    if isinstance(found, dict) and "skip" in found:
        return convert(_Skipped, found, "a row")
    return convert(_File, found, "a row")


def _since(node: NodeHandle, asked: LogRequest, offset: int) -> int | None:
    """Since when lines are asked for, in nanoseconds of the host's clock."""
    if asked.since is None:
        return None
    return int((node.connection.runtime.clock.time() - asked.since) * SECOND) + offset


AGAIN_SECONDS = 1.0
# A log that cannot be begun so often in a row, on a host that answers and whose node runs, never will be.
TRIES = 5
_BROKEN = (ConnectionLost, Unreachable, TimedOut)


class HostLogs:
    """The logs of one host, read by threads until they end or `stop`.

    `opened` is set once it is known whether the node can be read, `settled` once it is so for the files of its ranks;
    `failure` is why a log was not read to its end, `bug` what no log should raise; `ended` is whether the node does not
    run, so that the files of its ranks were not read.
    """

    def __init__(
        self,
        inventory: Inventory,
        connection: HostConnection,
        asked: LogRequest,
        *,
        merge: LogMerge,
        emit: Emit,
        covered: Covered,
    ) -> None:
        self.host = connection.name
        self.failure: VclusterError | None = None
        self.bug: Exception | None = None
        self.opened, self.settled, self.ranks_read = threading.Event(), threading.Event(), False
        self.ended = False
        self._inventory, self._connection, self._asked = inventory, connection, asked
        self._merge, self._emit = merge, emit
        self._node = node = NodeHandle(connection, inventory.cluster)
        self._ranks = FileFeed(node, asked, merge, group=False) if asked.ranks else None
        group = FileFeed(node, asked, merge, group=True) if asked.group else None
        container = ContainerFeed(node, asked, merge, covered) if asked.sources else None
        head = asked.orders and self.host == inventory.head_name
        orders = OrderFeed(node, asked, merge) if head else None
        self._feeds: list[Feed] = [feed for feed in (self._ranks, group, container, orders) if feed]
        for feed in self._feeds:
            merge.add(feed, self.host)
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._ready, self._offset = False, 0
        self._until: int | None = None
        self._away: float | None = None

    def stop(self) -> None:
        """Begin nothing more; what is being read ends with the connection."""
        self._stopped.set()

    def run(self) -> None:
        """Read all of it; never raises."""
        try:
            self._open()
        except VclusterError as error:
            self.failure = error
            self.opened.set()
            if not self._asked.follow:
                self._end()
                return
            self._warn_once(f"cannot be read yet: {error.message.removeprefix(f'{self.host}: ')}")
        self.opened.set()
        background = self._connection.runtime.background
        for feed in self._feeds:
            background(partial(self._keep, feed), "log")

    def _end(self) -> None:
        self.settled.set()
        for feed in self._feeds:
            self._merge.end(feed)

    def _open(self) -> None:
        """Connect, find the node, and measure how far the host's clock is ahead."""
        open_node(self._inventory, self._connection)
        self._offset = self._connection.docker.streams.clock_offset()
        if self._asked.previous and (there := self._node.container()) and there.status == "running":
            self._until = int(there.started * SECOND)
        self._ready, self.failure = True, None

    def _keep(self, feed: Feed) -> None:
        """Read one log to its end; where it is followed, again and again."""
        tries = 0
        try:
            if not self._ready:
                self._merge.pause(feed)
                self._await_node()
            while not self._stopped.is_set():
                begun, error = self._read(feed)
                tries = 0 if begun or isinstance(error, _BROKEN) else tries + 1
                if self._stopped.is_set():
                    return
                if error and not self._asked.follow and isinstance(feed, FileFeed) and (state := self._ended()):
                    # What Docker has of a node that has ended is shown all the same: the reason may be there.
                    text = f"the node is {state}: files that its ranks wrote are read once it runs again: vcluster up"
                    self._warn_once(text)
                    self.ended = True
                    return
                if error and (not self._asked.follow or tries >= TRIES):
                    raise error
                if not self._asked.follow:
                    return
                self._merge.pause(feed)
                self._await_node()
        except EOFError:
            return  # nothing is read any more
        except VclusterError as error:
            self.failure = self.failure or error
        except Exception as error:
            self.bug = error
        finally:
            if feed is self._ranks:
                self.settled.set()
            self._merge.end(feed)

    def _read(self, feed: Feed) -> tuple[bool, VclusterError | None]:
        """Read until it ends; whether it has begun, and why it broke off."""
        begun = threading.Event()

        def begin() -> None:
            if begun.is_set():
                return
            begun.set()
            self._merge.begin(feed)
            if feed is self._ranks:
                self.ranks_read = True
                self.settled.set()

        try:
            feed.read(self._offset, self._until, begin)
        except HostError as error:
            if isinstance(error, TooLong):
                error.hint = command_line("vcluster", "logs", self.host, Option("--since"), "10m")
            return begun.is_set(), error
        return begun.is_set(), None

    def _ended(self) -> str:
        """The state of a container that is there and does not run; else empty."""
        there = self._node.container()
        return there.status if there and there.status != "running" else ""

    def _await_node(self) -> None:
        """Wait until the host answers and its node runs."""
        while not self._stopped.wait(AGAIN_SECONDS):
            try:
                self._reconnect()
                there = self._node.container()
                if there and there.running:
                    self._back()
                    return
                state = there.status if there else "missing"
                self._warn_once(f"the node is {state}; its log continues when it runs again")
            except VclusterError as error:
                why = error.message.removeprefix(f"{self.host}: ")
                self._warn_once(f"its log continues when it answers again: {why}")

    def _reconnect(self) -> None:
        """Connect again where the connection is gone; one thread does it for all."""
        with self._lock:
            if not self._ready:
                self._open()
                return
            try:
                self._connection.transport.require_alive()
            except Unreachable:
                self._connection.reconnect()
                self._offset = self._connection.docker.streams.clock_offset()

    def _warn_once(self, text: str) -> None:
        """Name the reason once for each time that the host is away."""
        with self._lock:
            first, self._away = self._away is None, self._away or self._connection.runtime.clock.monotonic()
        if first and not self._stopped.is_set():
            self._emit(Event("warning", text, self.host))

    def _back(self) -> None:
        with self._lock:
            away, self._away = self._away, None
        if away is not None:
            seconds = self._connection.runtime.clock.monotonic() - away
            self._emit(Event("note", f"its log continues after {age(seconds)}", self.host))
