"""The logs of one node: its container's, and the files of Ray and its ranks in it, line by line into a merge."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from typing import Any, Protocol

from vllm_cluster.core.log_lines import GROUP, SECOND, VLLM, Line, LogRequest, copied_from, is_poll, split_source
from vllm_cluster.docker.log_frames import LogFrames, OutputFrames, Position, StampedLine, Stamps
from vllm_cluster.errors import CommandFailed, HostError
from vllm_cluster.run.log_merge import LogMerge
from vllm_cluster.run.node_handle import NodeHandle

# One line of a file, escaped as JSON.
MAX_ROW = 1 << 20


class Feed(Protocol):
    """A log that can be read on where a cut ended it."""

    def read(self, offset: int, until: int | None, begun: Callable[[], None]) -> None:
        """Read to the end: of the log, or of the connection. `offset` is how far the host's clock is ahead (ns).

        `until` leaves out what came later, by the host's clock; `begun` is called once the log is being read.

        Raises:
            HostError: it cannot be read, or the connection broke.
        """
        ...


class ContainerFeed:
    """The log of a node's container; lines of a rank whose own log is `covered` are left out of it."""

    def __init__(self, node: NodeHandle, asked: LogRequest, merge: LogMerge, covered: Callable[[str], bool]) -> None:
        self._node, self._asked, self._merge, self._covered = node, asked, merge, covered
        self._position, self._stamps = Position(), Stamps()
        self._grep = asked.grep.encode()

    def read(self, offset: int, until: int | None, begun: Callable[[], None]) -> None:
        """As of any feed."""
        since = self._position.resume() or _since(self._node, self._asked, offset)
        frames, streams = LogFrames(), self._node.connection.engine.streams
        with streams.log(self._node.name, since=since, until=until, follow=self._asked.follow) as pieces:
            begun()
            for piece in pieces:
                try:
                    lines = self._chosen(self._position.fresh(frames.feed(piece)), offset)
                except ValueError as error:
                    raise HostError(self._node.host, f"logs: Docker's log cannot be read: {error}") from error
                self._merge.put(self, lines)

    def _chosen(self, lines: Sequence[StampedLine], offset: int) -> list[Line]:
        host, stamps, sources, grep = self._node.host, self._stamps, self._asked.sources, self._grep
        chosen: list[Line] = []
        for stamp, raw in lines:
            source, text = split_source(raw)
            if source not in sources or (grep and grep not in text):
                continue
            if not self._asked.polls and is_poll(source, text):
                continue
            if text[:10] == b"(RayWorker" and (at := copied_from(text)) is not None and self._covered(at):
                continue
            chosen.append(Line(stamps(stamp) - offset, host, source, text.decode("utf-8", "replace")))
        return chosen


class FileFeed:
    """Ray's files in a node: what each of its ranks prints, or what Ray itself does."""

    def __init__(self, node: NodeHandle, asked: LogRequest, merge: LogMerge, *, group: bool) -> None:
        self._node, self._asked, self._merge, self._group = node, asked, merge, group
        self._offsets: dict[str, int] = {}
        self._skip: list[str] | None = None
        self._since: int | None = None

    def read(self, offset: int, until: int | None, begun: Callable[[], None]) -> None:
        """As of any feed."""
        self._since = self._since or _since(self._node, self._asked, offset)
        asked: dict[str, Any] = {"follow": self._asked.follow, "previous": self._asked.previous}
        asked |= {"rank": self._asked.rank, "group": self._group, "since": self._since}
        asked |= {"offsets": self._offsets, "skip": self._skip}
        script = files("vllm_cluster.remote.image").joinpath("log_tail.py").read_text()
        argv = ["python3", "-c", script, json.dumps(asked)]
        with self._node.connection.engine.streams.exec(self._node.name, argv) as running:
            frames, names = OutputFrames(), dict[int, tuple[str, int | None]]()
            for rows in _rows(self._node.host, frames, running.output()):
                if not names:
                    begun()
                self._merge.put(self, [line for row in rows if (line := self._line(row, names, offset))])
            if not self._asked.follow and (code := running.code()):
                text = f"logs: the files of its ranks cannot be read: exit code {code}: {frames.errors()}"
                raise CommandFailed(self._node.host, text, exit_code=code, stderr=frames.errors())

    def _line(self, row: Any, names: dict[int, tuple[str, int | None]], offset: int) -> Line | None:
        if isinstance(row, dict):
            if "skip" in row:
                self._skip = row["skip"]
            else:
                names[row["file"]] = row["name"], row["rank"]
            return None
        number, at, end, text = row
        name, rank = names[number]
        self._offsets[name] = end
        if self._asked.grep not in text:
            return None
        stem = name.rpartition("/")[2].rpartition(".")[0]
        # A process of Ray's that has not become a rank yet, or never will.
        source = GROUP if self._group else VLLM if rank is not None else f"pid {stem.rpartition('-')[2]}"
        return Line(at - offset, self._node.host, source, text, rank)


def _rows(host: str, frames: OutputFrames, output: Iterator[bytes]) -> Iterator[list[Any]]:
    """The values that a program in a container prints, as they come."""
    rest = b""
    try:
        for piece in output:
            *lines, rest = (rest + frames.feed(piece)).split(b"\n")
            if len(rest) > MAX_ROW:
                raise ValueError("a line without an end")
            yield [json.loads(line) for line in lines]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise HostError(host, f"logs: what the program in its container printed cannot be read: {error}") from error


def _since(node: NodeHandle, asked: LogRequest, offset: int) -> int | None:
    """Since when lines are asked for, in nanoseconds of the host's clock."""
    if asked.since is None:
        return None
    return int((node.connection.runtime.clock.time() - asked.since) * SECOND) + offset
