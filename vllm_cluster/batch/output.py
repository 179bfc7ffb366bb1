"""The files that a batch writes: rows are appended whole, and a row that a kill or a full disk tore is cut off."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from vllm_cluster.batch.answered import Answered
from vllm_cluster.batch.lines import could_begin, name_in, place_of
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
        """Each whole row.

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

    def read(self, copies: int) -> tuple[Answered, set[str]]:
        """What is answered, and the models that the first and the last row name.

        Raises:
            BatchProblem: as `rows`.
        """
        answered, row, models = Answered(copies), b"", set[str]()
        for number, row in enumerate(self.rows(), 1):
            if place := place_of(row):
                answered.add(place, str(self.path))
            if name := name_in(row):
                answered.names.add(name)
            if number == 1:
                models |= _model(row)
        return answered, models | _model(row)

    @property
    def size(self) -> int:
        """The bytes of its whole rows."""
        return self._size

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

    def close(self) -> None:
        """Have the disk keep it, remove it where it is empty, and let other runs write it."""
        try:
            if self._dirty:
                os.fsync(self._fd)
            if os.fstat(self._fd).st_size == 0:
                self.path.unlink(missing_ok=True)
        finally:
            os.close(self._fd)


def _model(row: bytes) -> set[str]:
    try:
        found = json.loads(row)["response"]["body"]["model"]
    except (ValueError, KeyError, TypeError):
        return set()
    return {found} if isinstance(found, str) else set()
