"""The folder of a measurement: one run writes in it, and replaces what it has written itself alone."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from vllm_cluster.kernel.errors import Locked, UsageError
from vllm_cluster.kernel.laptop import naming, write_whole


class OwnFolder:
    """A folder in which this run alone writes; made by `own_folder`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._wrote = dict[str, tuple[int, ...]]()

    def write(self, name: str, text: str) -> None:
        """Write a file, whole or not at all: a new one, or over that of the same name that this run wrote.

        Raises:
            UsageError: another one is there, which stays.
            OSError: it cannot be written.
        """
        path = self.path / name
        with naming(path):
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                if name not in self._wrote:
                    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
                elif not self._is_own(path):
                    raise FileExistsError
            except FileExistsError:
                text = f"{path} was put there by another program meanwhile, and would be replaced"
                raise UsageError(text, hint="give another folder with --output") from None
            write_whole(path, text)
            self._wrote[name] = _identity(path)

    def _is_own(self, path: Path) -> bool:
        """Whether what is there is what this run wrote, or nothing."""
        try:
            return _identity(path) == self._wrote[path.name]
        except FileNotFoundError:
            return True


@contextmanager
def own_folder(path: Path, names: Sequence[str]) -> Iterator[OwnFolder]:
    """Make a folder without files of these names, and keep it for this run; where nothing was written, it is removed.

    Raises:
        UsageError: a file is there, which would be replaced.
        Locked: another run writes there.
        OSError: it cannot be made.
    """
    new = not path.is_dir()
    with naming(path):
        path.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(lock, path)
        if there := [name for name in names if os.path.lexists(path / name)]:
            text = f"{path} already has {' and '.join(there)}, which would be replaced"
            raise UsageError(text, hint="give another folder with --output")
        try:
            yield OwnFolder(path)
        finally:
            if new:
                with suppress(OSError):  # it has a file by now
                    path.rmdir()
    finally:
        os.close(lock)


def _identity(path: Path) -> tuple[int, ...]:
    """Which file is there, and as who left it: the number of one that was removed is used again."""
    about = path.lstat()
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns


def _lock(folder: int, path: Path) -> None:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Locked(f"{path} is being written by another run of vcluster bench", again=()) from None
    except OSError as error:
        # Some network file systems lock no folder; a file that comes meanwhile is not replaced there either.
        if error.errno not in (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP):
            raise
