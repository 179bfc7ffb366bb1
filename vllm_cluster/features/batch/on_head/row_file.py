"""A file of rows that one run alone writes: appended whole, and where its name leads.

A kill leaves at most a torn last row; what another program does to the file meanwhile is found before more is written.
What is there is cut just before the first row is added, and only where it has the form of a row.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from array import array
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from vllm_cluster.features.batch.on_head.lines import MAX_ROW, BatchProblem, Displaced, InUse, could_begin, place_of

# After a loss of power at most the answers of so many seconds are asked for again; a kill loses none.
SYNC_SECONDS = 1.0
# Of a torn row: its id and its name.
_TORN_KEPT = 16 << 10
# Errors that another path on the command line avoids.
_UNFIT = {errno.EISDIR, errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENAMETOOLONG}


class RowFile:
    """A file of rows that this run alone writes."""

    def __init__(self, path: Path, *, new: bool = False, follow: bool = True, own: bool = False) -> None:
        """Open or create it; where it must be `new`, only the latter; unless it may `follow` one, not behind a link.

        Of one that is this program's `own`, all that follows the whole rows is cut.

        Raises:
            InUse: another run writes it.
            BatchProblem: it is not a plain file, or cannot be written.
        """
        self.path, self._own = path, own
        try:
            self._fd, self._linked = _opened(path, os.O_EXCL if new else 0, follow)
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
        # Whole rows, and what there is with a torn one behind them.
        self._size = self._there = os.fstat(self._fd).st_size
        self.torn = b""
        # Whether it may be removed where it is empty at last: another one had content, which may be a person's own.
        self._removable = not self._there
        self._synced, self._dirty = 0.0, False

    def rows(self) -> Iterator[bytes]:
        """Read each whole row.

        Raises:
            BatchProblem: one is not of a batch: the file is left as it is.
        """
        end, self.torn = 0, b""
        with open(self._fd, "rb", closefd=False) as file:
            file.seek(0)
            # A file with a hole of 5 GB is one row, of another program.
            for number, row in enumerate(iter(partial(file.readline, MAX_ROW + 1), b""), 1):
                is_row = row.endswith(b"\n") and place_of(row) is not None
                if self._own and not is_row:  # after a loss of power it may be anything
                    break
                if len(row) > MAX_ROW:
                    self._refuse(number)
                if not row.endswith(b"\n"):
                    # After a loss of power there may be zeros.
                    torn = row.rstrip(b"\0")
                    self._check_torn(number, torn)
                    self.torn = torn[:_TORN_KEPT]
                    break
                if not is_row:
                    self._refuse(number)
                end += len(row)
                yield row
        self._size = end

    def _check_torn(self, number: int, row: bytes) -> None:
        """Refuse what no kill of this program has left behind the last whole row, if there is one."""
        if self._linked:
            text = f"{self.path} is a link, and what is behind it ends within a row: none is cut there"
            raise BatchProblem(text, usage=True, hint="name another output with -o")
        # The first row's id is in the first page of the file, which is written whole.
        if (number == 1 and place_of(row) is None) or not could_begin(row):
            self._refuse(number)

    def _refuse(self, number: int) -> None:
        text = f"{self.path}:{number}: not a row that vcluster batch writes"
        raise BatchProblem(text, usage=True, hint="name another output with -o")

    def begin(self) -> None:
        """Cut off what is behind the last whole row.

        Raises:
            Displaced: the file has another length than it had: what is there may be of another program.
        """
        if os.fstat(self._fd).st_size != self._there:
            raise self._displaced()
        if self._there != self._size:
            os.ftruncate(self._fd, self._size)
            self._there, self.torn = self._size, b""

    def clear(self) -> None:
        """Begin with no row; every row that was there must be known to be this batch's.

        Raises:
            Displaced: the file has another length than it had.
        """
        self._size, self._removable = 0, True
        self.begin()

    def append(self, row: bytes) -> None:
        """Add a row, whole or not at all.

        Raises:
            Displaced: the file has another length than this run gave it: a row behind that would be behind a hole.
            OSError: it cannot be written.
        """
        self.begin()
        try:
            written = 0
            while written < len(row):
                written += os.pwrite(self._fd, row[written:], self._size + written)
        except OSError as error:
            os.ftruncate(self._fd, self._size)
            error.filename = str(self.path)
            raise
        self._size = self._there = self._size + len(row)
        self._dirty = True

    def ensure_in_place(self) -> None:
        """Check that the rows are still where this file's name leads.

        Raises:
            Displaced: another program has removed, replaced or changed the file.
        """
        if self._there and not self._in_place():
            raise self._displaced()

    def _in_place(self) -> bool:
        """A file that was removed or replaced takes rows as before, and they go with it."""
        own = os.fstat(self._fd)
        try:
            return own.st_size == self._there and os.path.samestat(own, self.path.stat())
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
            BatchProblem, OSError: there is no room for a second file beside it.
        """
        if self._there > self._size:
            raise BatchProblem(f"{self.path} ends within a row")
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
        """Have the disk keep it, remove it where it is empty as it was, and let other runs write it."""
        try:
            if self._dirty:
                os.fsync(self._fd)
            if self._removable and not self._there and self._in_place():
                with suppress(OSError):  # the folder may let no file be removed
                    self.path.unlink()
        finally:
            os.close(self._fd)


def _opened(path: Path, more: int, follow: bool) -> tuple[int, bool]:
    """Open a file for rows, or create it, with whether it is behind a link: only where there are some, if at all.

    A cloned folder may hold a link to a file that a shell reads, and rows have words of the input in them.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | more, 0o666), False
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    if not follow:
        text = f"{path} is a link, and reasons are written behind none"
        raise BatchProblem(text, usage=True, hint="name another output with -o")
    with suppress(FileNotFoundError):
        found = os.open(path, flags)
        if os.fstat(found).st_size:
            return found, True
        os.close(found)
    text = f"{path} is a link, and no answers are there yet: none are written behind it"
    raise BatchProblem(text, usage=True, hint="name another output with -o")
