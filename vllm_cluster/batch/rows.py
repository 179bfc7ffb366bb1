"""The files that a batch writes: rows are appended whole, and a row that a kill or a full disk tore is cut off."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from array import array
from collections.abc import Iterator
from pathlib import Path

from vllm_cluster.batch.lines import could_begin, place_of
from vllm_cluster.batch.problems import BatchProblem, InUse

# After a loss of power at most the answers of so many seconds are asked for again; a kill loses none.
SYNC_SECONDS = 1.0
# Errors that another path on the command line avoids.
_UNFIT = {errno.EISDIR, errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENAMETOOLONG}


class RowFile:
    """A file of rows that this run alone writes."""

    def __init__(self, path: Path) -> None:
        """Open or create it.

        Raises:
            InUse: another run writes it.
            BatchProblem: it is not a plain file, or cannot be written.
        """
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
        except OSError as error:
            raise BatchProblem(f"cannot write {path}: {error.strerror}", usage=error.errno in _UNFIT) from None
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise BatchProblem(f"{path} is not a file that rows can be added to", usage=True)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InUse(f"another run of vcluster batch writes {path}") from None
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
            for number, row in enumerate(file, 1):
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
            OSError: it cannot be written.
        """
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

    def sync(self, now: float) -> None:
        """Have the disk keep what was added, at most once in `SYNC_SECONDS`."""
        if self._dirty and now - self._synced >= SYNC_SECONDS:
            os.fsync(self._fd)
            self._synced, self._dirty = now, False

    def sort(self) -> None:
        """Put the rows in the order of their lines: the file is the old one or the new one, also after a kill.

        Raises:
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
        fresh = path.with_name(f"{path.name}.sorting")
        fresh.unlink(missing_ok=True)
        try:
            ordered = RowFile(fresh)
            try:
                os.fchmod(ordered._fd, stat.S_IMODE(os.fstat(self._fd).st_mode))
                with open(self._fd, "rb", closefd=False) as old, open(ordered._fd, "wb", closefd=False) as new:
                    for start in filter(None, starts):
                        old.seek(start - 1)
                        new.write(old.readline())
                os.fsync(ordered._fd)
                fresh.replace(path)
            except BaseException:
                os.close(ordered._fd)
                raise
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
        os.close(self._fd)
        self._fd, self._dirty = ordered._fd, False

    def close(self) -> None:
        """Have the disk keep it, remove it where it is empty, and let other runs write it."""
        try:
            if self._dirty:
                os.fsync(self._fd)
            if os.fstat(self._fd).st_size == 0:
                self.path.unlink(missing_ok=True)
        finally:
            os.close(self._fd)
