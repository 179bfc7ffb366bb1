"""The files of a batch: rows are appended whole, what a kill tore is cut off, and it is known what has no answer."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import stat
from array import array
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from vllm_cluster.features.batch.on_head.large import plain_at
from vllm_cluster.features.batch.on_head.lines import (
    MAX_ROW,
    BatchProblem,
    Displaced,
    InUse,
    Place,
    Source,
    checksum,
    could_begin,
    is_error,
    name_of,
    named_in,
    options_checksum,
    place_of,
)

# After a loss of power at most the answers of so many seconds are asked for again; a kill loses none.
SYNC_SECONDS = 1.0
# Errors that another path on the command line avoids.
_UNFIT = {errno.EISDIR, errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENAMETOOLONG}
NOTHING, ANSWERED, FAILED = 0, 1, 2


class RowFile:
    """A file of rows that this run alone writes."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        """Open or create it; where it must be `new`, only the latter.

        Raises:
            InUse: another run writes it.
            BatchProblem: it is not a plain file, or cannot be written.
        """
        self.path = path
        try:
            self._fd = _opened(path, os.O_EXCL if new else 0)
        except OSError as error:
            raise BatchProblem(f"cannot write {path}: {error.strerror}", usage=error.errno in _UNFIT) from None
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise BatchProblem(f"{path} is not a file that rows can be added to", usage=True)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InUse(f"{path} is being written by another run of vcluster batch") from None
        except BaseException:
            os.close(self._fd)
            raise
        self._size = os.fstat(self._fd).st_size
        self._synced, self._dirty = 0.0, False

    def rows(self) -> Iterator[bytes]:
        """Read each whole row.

        Raises:
            BatchProblem: one is not of a batch: the file is left as it is.
        """
        end = 0
        with open(self._fd, "rb", closefd=False) as file:
            file.seek(0)
            # A file with a hole of 5 GB is one row, of another program.
            for number, row in enumerate(iter(partial(file.readline, MAX_ROW + 1), b""), 1):
                if len(row) > MAX_ROW:
                    self._refuse(number)
                if not row.endswith(b"\n"):
                    if number == 1 and not could_begin(row):
                        self._refuse(number)
                    break
                if place_of(row) is None:
                    self._refuse(number)
                end += len(row)
                yield row
        self._size = end

    def _refuse(self, number: int) -> None:
        text = f"{self.path}:{number}: not a row that vcluster batch writes"
        raise BatchProblem(text, usage=True, hint="name another output with -o")

    def begin(self) -> None:
        """Cut off what is behind the last whole row."""
        os.ftruncate(self._fd, self._size)

    def clear(self) -> None:
        """Begin with no row."""
        self._size = 0
        self.begin()

    def append(self, row: bytes) -> None:
        """Add a row, whole or not at all.

        Raises:
            Displaced: the file has another length than this run gave it: a row behind that would be behind a hole.
            OSError: it cannot be written.
        """
        if os.fstat(self._fd).st_size != self._size:
            raise self._displaced()
        try:
            written = 0
            while written < len(row):
                written += os.pwrite(self._fd, row[written:], self._size + written)
        except OSError as error:
            os.ftruncate(self._fd, self._size)
            error.filename = str(self.path)
            raise
        self._size += len(row)
        self._dirty = True

    def ensure_in_place(self) -> None:
        """Check that the rows are still where this file's name leads.

        Raises:
            Displaced: another program has removed, replaced or changed the file.
        """
        if self._size and not self._in_place():
            raise self._displaced()

    def _in_place(self) -> bool:
        """A file that was removed or replaced takes rows as before, and they go with it."""
        own = os.fstat(self._fd)
        try:
            return own.st_size == self._size and os.path.samestat(own, self.path.stat())
        except OSError:
            return False

    def _displaced(self) -> Displaced:
        return Displaced(f"{self.path} was removed, replaced or changed by another program while answers came")

    def sync(self, now: float) -> None:
        """Have the disk keep what was added, at most once in `SYNC_SECONDS`."""
        if self._dirty and now - self._synced >= SYNC_SECONDS:
            os.fsync(self._fd)
            self._synced, self._dirty = now, False

    def sort(self) -> None:
        """Put the rows in the order of their lines: the file is the old one or the new one, also after a kill.

        Raises:
            Displaced: what is there now is another file, which stays.
            OSError: it cannot be written.
        """
        starts, at = array("Q"), 1  # 0 is a line without a row
        for row in self.rows():
            if place := place_of(row):
                if place.line >= len(starts):
                    starts.frombytes(bytes(8 * (place.line + 1 - len(starts))))
                starts[place.line] = at
            at += len(row)
        path = Path(os.path.realpath(self.path))
        # A new name: a file of the person's, as another batch's input, may have any that can be guessed.
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}.sorting")
        ordered = RowFile(fresh, new=True)
        try:
            os.fchmod(ordered._fd, stat.S_IMODE(os.fstat(self._fd).st_mode))
            with open(self._fd, "rb", closefd=False) as old, open(ordered._fd, "wb", closefd=False) as new:
                for start in filter(None, starts):
                    old.seek(start - 1)
                    new.write(old.readline())
            os.fsync(ordered._fd)
            self.ensure_in_place()  # what came there meanwhile stays
            fresh.replace(path)
        except BaseException:
            os.close(ordered._fd)
            fresh.unlink(missing_ok=True)
            raise
        os.close(self._fd)
        self._fd, self._dirty = ordered._fd, False

    def close(self) -> None:
        """Have the disk keep it, remove it where it is empty, and let other runs write it."""
        try:
            if self._dirty:
                os.fsync(self._fd)
            if not self._size and self._in_place():
                self.path.unlink(missing_ok=True)
        finally:
            os.close(self._fd)


@dataclass(frozen=True)
class BatchFiles:
    """What is read, and where answers go."""

    source: Path
    output: Path

    @property
    def errors(self) -> Path:
        """Where lines without an answer go."""
        return self.output.with_suffix(f".errors{self.output.suffix or '.jsonl'}")


@dataclass(frozen=True)
class BatchResult:
    """The requests of the input, those answered in all and by this run, those without an answer, and its tokens."""

    total: int
    answered: int
    answered_now: int
    failed: int
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0


class Work:
    """The files, opened and compared before any host is asked: in memory are names, and five bytes for each line."""

    def __init__(self, files: BatchFiles, fields: Mapping[str, Any], stack: ExitStack) -> None:
        """Open them, until the stack is left.

        Raises:
            BatchProblem, OSError: one cannot be used, or they do not fit together.
        """
        files.source.open("rb").close()
        self._files, self._began = files, monotonic()
        self._source = Source(files.source)
        self.output, self._errors = _open(files.output, stack), _open(files.errors, stack)
        self._shape, self._lines = options_checksum(fields), 0
        self._sums, self._names, self.key = self._read_source(self._shape)
        self._rows = bytearray(len(self._sums))
        self.total = len(self._sums) - self._sums.count(0)
        self.answered = self.failed = self._last = 0
        self._in_order, self.models = True, set[str]()
        self._read_output()
        self._before = self.answered
        for row in self._errors.rows():
            if not is_error(row):  # what is cleared
                text = f"{files.errors} holds answers, and would be cleared"
                raise BatchProblem(text, usage=True, hint="name another output with -o")

    def _read_source(self, shape: int) -> tuple[array[int], dict[str, int], str]:
        """The checksum of each line, 0 where it is empty, the line of each name, and the batch's name by content."""
        sums, digest, names = array("I", [0]), hashlib.sha256(f"{shape}\n".encode()), dict[str, int]()
        for number, raw in self._source.lines():
            if (name := name_of(raw)) and names.setdefault(name, number) != number:
                text = f"{self._files.source}:{number}: custom_id {json.dumps(name)} is also that of line {names[name]}"
                raise BatchProblem(text, usage=True, hint="give each request a custom_id of its own")
            self._lines += 1
            sums.frombytes(bytes(4 * (number - len(sums))))
            sums.append(checksum(raw, shape))
            digest.update(b"%d %s\n" % (number, raw))
        return sums, names, digest.hexdigest()[:16]

    def _read_output(self) -> None:
        row, first = b"", b""
        for row in self.output.rows():
            first = first or row
            place = place_of(row)
            if place is None or is_error(row) or not self._asks(place):
                line = place.line if place else 0
                text = f"{self._files.output} holds the answers to another input than {self._files.source}: its answer "
                text += f"to line {line} is to another line, or with other options"
                raise BatchProblem(text, usage=True, hint="name another output with -o")
            if self._rows[place.line]:
                raise BatchProblem(f"{self._files.output} has two answers to line {place.line}", usage=True)
            self._count(place, ANSWERED)
        self.models = {_model(one) for one in (first, row)} - {""}

    def _asks(self, place: Place) -> bool:
        return place.line < len(self._sums) and self._sums[place.line] == place.checksum

    def _count(self, place: Place, what: int) -> None:
        self._rows[place.line] = what
        if what == FAILED:
            self.failed += 1
            return
        self.answered += 1
        self._in_order, self._last = self._in_order and place.line > self._last, place.line

    @property
    def left(self) -> int:
        """How many requests have neither an answer nor a reason for none."""
        return self.total - self.answered - self.failed

    def lines(self) -> Iterator[bytes]:
        """Read what is left, each line behind its number.

        Raises:
            BatchProblem: the input is another one than was compared with the output.
        """
        seen = 0
        for number, raw in self._source.lines():
            seen += 1
            if not self._asks(Place(number, checksum(raw, self._shape))):
                raise self._changed()
            if not self._rows[number]:
                yield b"%d %s\n" % (number, raw)
        if seen != self._lines:
            raise self._changed()

    def _changed(self) -> BatchProblem:
        text = f"{self._files.source} has changed while it was read; none of its requests was started"
        return BatchProblem(text, usage=True, hint="run the same command again")

    def begin(self) -> None:
        """Cut off what a kill has torn, and forget the reasons of the run before."""
        self.output.begin()
        self._errors.clear()

    def take(self, row: bytes) -> None:
        """Add a row that came from elsewhere; one that is there is not added again.

        Raises:
            ValueError: it is of no line of the input as that is here, or has the name of another line.
            OSError: it cannot be written.
        """
        place, failed = place_of(row), is_error(row)
        if place is None or not self._asks(place):
            raise ValueError(f"{row[:60]!r} is of no line of {self._files.source}")
        name = named_in(row, place)
        if not (failed if name is None else self._names.get(name) == place.line):
            raise ValueError(f"{row[:60]!r} does not have the custom_id of line {place.line} of {self._files.source}")
        if self._rows[place.line]:
            return
        (self._errors if failed else self.output).append(row)
        self._count(place, FAILED if failed else ANSWERED)
        self.output.sync(monotonic())

    def ensure_in_place(self) -> None:
        """Check that what was taken can be found.

        Raises:
            Displaced: another program has removed, replaced or changed a file.
        """
        for file in (self.output, self._errors):
            file.ensure_in_place()

    def finish(self) -> None:
        """Put the output in the order of the input; after it nothing else needs to have the rows.

        Raises:
            Displaced: another program has removed, replaced or changed a file.
        """
        self.ensure_in_place()
        if not self._in_order:
            self.output.sort()
            self._in_order = True

    def summary(self, prompt_tokens: int = 0, completion_tokens: int = 0) -> BatchResult:
        """Report what was done."""
        now, seconds = self.answered - self._before, monotonic() - self._began
        return BatchResult(
            self.total, self.answered, now, self.failed, prompt_tokens, completion_tokens, round(seconds, 3)
        )


def _opened(path: Path, more: int) -> int:
    """Open a file for rows, or create it: behind a link only where there are some.

    A cloned folder may hold a link to a file that a shell reads, and rows have words of the input in them.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | more, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    with suppress(FileNotFoundError):
        found = os.open(path, flags)
        if os.fstat(found).st_size:
            return found
        os.close(found)
    text = f"{path} is a link, and no answers are there yet: none are written behind it"
    raise BatchProblem(text, usage=True, hint="name another output with -o")


def _open(path: Path, stack: ExitStack) -> RowFile:
    file = RowFile(path)
    stack.callback(file.close)
    return file


def _model(row: bytes) -> str:
    try:
        found = plain_at(row, ("response", "body", "model")) if row else ""
    except ValueError:
        return ""
    return found if isinstance(found, str) else ""
