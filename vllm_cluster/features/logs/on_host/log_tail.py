"""Runs inside a node's container by `python3 -c`: sends the lines of Ray's files, its ranks' among them, as they come.

Standard library alone. The argument is JSON: `follow`, `previous` (the session before), `rank` (one alone), `group`
(its own files, not those of ranks), `since` (nanoseconds since 1970), `offsets` (how far each file was sent before) and
`skip` (sessions that are not sent; null: those before the last). Prints JSON, one value a line: {"skip": …} first,
{"file": number, "name": …, "rank": …} before a file's first line, and [number, nanoseconds, end, text] for a line. It
ends when its input ends.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import re
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SESSIONS = "/tmp/ray"  # noqa: S108 - where Ray puts its sessions
PIECE = 256 << 10
MAX_LINE = 64 << 10
POLL_SECONDS = 0.2
# The last line of a process that was killed may have no end.
UNENDED_SECONDS = 2.0
RANK_BYTES = 256 << 10
_RANK = re.compile(rb"world_size=\d+ rank=(\d{1,9}) |\brank (\d{1,9}) in world size ")
_OF_GROUP = ("raylet.out", "raylet.err", "gcs_server.out", "gcs_server.err")
# vLLM's "INFO 11-22 13:40:21", glog's "W1122 13:40:23.553351", Python's and Ray's "2026-11-22 13:40:23,553".
_TIME = re.compile(
    rb"(?:(?:\b(?:INFO|WARNING|ERROR|DEBUG|CRITICAL) |(\d{4})-)(\d\d)-(\d\d)|\b[IWEF](\d\d)(\d\d))"
    rb"[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
)
# What a process writes for Ray's own reader of its file.
_FOR_GROUP = (b":job_id:", b":actor_name:", b":task_name:")
Row = tuple[int, int, int, bytes]


class Tail:
    """One file: how far it was sent, and the time of its last line."""

    def __init__(self, number: int, path: Path, offset: int) -> None:
        self.number, self.offset = number, offset
        self._path = path
        self._file = os.open(path, os.O_RDONLY)
        self._last = 0
        self._minute, self._base = b"", 0

    def rows(self, *, live: bool, ended: bool) -> Iterator[Row]:
        """The lines that are new; `live` ones are as old as the file, `ended` takes a last line that has no end."""
        rest, cut, at = b"", 0, self.offset
        while data := os.pread(self._file, PIECE, at):
            begin = at - len(rest) - cut
            at += len(data)
            modified = os.fstat(self._file).st_mtime_ns
            *whole, rest = (rest + data).split(b"\n")
            for index, line in enumerate(whole):
                begin += len(line) + 1 + cut
                text = line[:MAX_LINE] if len(line) + cut > MAX_LINE else line
                text += b" ... [%d bytes cut]" % (len(line) + cut - MAX_LINE) if len(line) + cut > MAX_LINE else b""
                cut = 0
                when = modified if live else self._when(whole, index, modified)
                self._last = max(self._last, when)
                # Of a progress bar, what a terminal would show.
                yield self._last, self.number, begin, text.rstrip(b"\r").rpartition(b"\r")[2]
                self.offset = begin
            cut += max(0, len(rest) - MAX_LINE)
            rest = rest[:MAX_LINE]
        status = os.fstat(self._file)
        if at > self.offset and (ended or time.time() - status.st_mtime > UNENDED_SECONDS):
            self._last = max(self._last, status.st_mtime_ns)
            yield self._last, self.number, at, rest + (b" ... [%d bytes cut]" % cut if cut else b"")
            self.offset = at
        there = self._path.stat()
        if (there.st_dev, there.st_ino) != (status.st_dev, status.st_ino) or there.st_size < self.offset:
            # Ray has begun a new file in its place.
            os.close(self._file)
            self._file, self.offset = os.open(self._path, os.O_RDONLY), 0

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)

    def _when(self, whole: list[bytes], index: int, modified: int) -> int:
        """When a line was written: no sooner than the one before it, no later than the file."""
        written = self._written(whole[index], modified)
        if written is None and not self._last:
            # Lines before the first time are about as old as that. A copy of them for each line took 33 s a piece.
            after = (self._written(one, modified) for one in itertools.islice(whole, index + 1, None))
            written = next((at for at in after if at is not None), modified)
        return min(written or 0, modified)

    def _written(self, line: bytes, modified: int) -> int | None:
        found = _TIME.search(line, 0, 240)
        if found is None:
            return None
        year, month, day, month_too, day_too, hour, minute, second, fraction = found.groups()
        key = b"%s-%s-%s %s:%s" % (year or b"", month or month_too, day or day_too, hour, minute)
        if key != self._minute:
            this = time.localtime(modified / 1e9).tm_year
            words = (int(month or month_too), int(day or day_too), int(hour), int(minute))
            try:
                base = time.mktime((int(year or this), *words, 0, 0, 0, -1))
                if not year and base * 1e9 > modified + 86400e9:
                    base = time.mktime((this - 1, *words, 0, 0, 0, -1))  # a line of December, read in January
            except (OverflowError, ValueError):
                return None
            self._minute, self._base = key, int(base)
        return (self._base + int(second)) * 1_000_000_000 + int((fraction or b"").ljust(9, b"0"))


class Sender:
    """Sends what is new of each file."""

    def __init__(self, asked: dict[str, Any], folder: Path) -> None:
        self._asked, self._folder = asked, folder
        self._tails: dict[str, Tail] = {}
        self._numbers = itertools.count()
        self._ranks: dict[str, int] = {}
        self._named: dict[str, int | None] = {}
        latest = (folder / "session_latest").resolve().name
        older = sorted(path.name for path in folder.glob("session_2*") if path.name != latest)
        skip = [latest, *older[:-1]] if asked["previous"] else older
        self._skip = set(asked["skip"] if asked["skip"] is not None else skip)
        _print({"skip": sorted(self._skip)})
        sys.stdout.flush()

    def send(self, *, live: bool) -> None:
        """Send all lines that are new, in the order of their times."""
        since = self._asked["since"] or 0
        files = self._files()
        for name in self._tails.keys() - {name for name, _ in files}:
            self._drop(name)
        rows = [self._rows(name, path, live=live) for name, path in files]
        for at, number, end, text in heapq.merge(*rows):
            if at >= since:
                _print([number, at, end, text.decode("utf-8", "replace")])
        sys.stdout.flush()

    def _drop(self, name: str) -> None:
        """Forget a file that is gone: another one of its name is sent from its beginning."""
        self._tails.pop(name).close()
        self._named.pop(name, None)
        self._asked["offsets"].pop(name, None)

    def _rows(self, name: str, path: Path, *, live: bool) -> Iterator[Row]:
        rank = None if self._asked["group"] else self._rank(path)
        if self._asked["rank"] not in (None, rank):
            return
        try:
            if name not in self._tails:
                # A file that has appeared since the last look was written since then.
                self._tails[name] = Tail(next(self._numbers), path, self._asked["offsets"].get(name, 0))
            tail = self._tails[name]
            for row in tail.rows(live=live, ended=not self._asked["follow"]):
                if row[3].startswith(_FOR_GROUP):
                    continue
                if self._named.get(name, -1) != rank:
                    self._named[name] = rank
                    _print({"file": tail.number, "name": name, "rank": rank})
                yield row
        except OSError:
            return  # it was removed with its session

    def _files(self) -> list[tuple[str, Path]]:
        patterns = _OF_GROUP if self._asked["group"] else ("worker-*.out", "worker-*.err")
        sessions = [path for path in self._folder.glob("session_2*") if path.name not in self._skip]
        found = [path for session in sessions for one in patterns for path in (session / "logs").glob(one)]
        return sorted((f"{path.parents[1].name}/{path.name}", path) for path in found)

    def _rank(self, path: Path) -> int | None:
        """The rank that the process of a file has become: it prints it once."""
        for suffix in (".out", ".err"):
            if path.stem in self._ranks:
                break
            try:
                with path.with_suffix(suffix).open("rb") as file:
                    found = _RANK.search(file.read(RANK_BYTES))
            except OSError:
                continue
            if found:
                self._ranks[path.stem] = int(found[1] or found[2])
        return self._ranks.get(path.stem)


def _print(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")


def main(asked: str, folder: str = SESSIONS) -> None:
    """Send until all is sent, or until the input ends."""
    wanted = json.loads(asked)
    sender, live = Sender(wanted, Path(folder)), False
    while True:
        sender.send(live=live)
        live = True
        if not wanted["follow"]:
            return
        if select.select([0], [], [], POLL_SECONDS)[0] and not os.read(0, 4096):
            return


if __name__ == "__main__":
    main(sys.argv[1])
