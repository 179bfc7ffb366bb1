"""Opens a file of a folder that others may write: what it is, and where it leads, is looked at once it is open.

Standard library alone: it is sent along with a program.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def is_inside(path: Path, root: Path, cache: Path) -> bool:
    """Whether a path without links is below the folder, or among the hub's models, beside which a cache has a token."""
    return bool({Path(os.path.realpath(one)) for one in (root, cache / "hub")} & {*path.parents})


def beginning(path: Path, most: int) -> bytes:
    """Read the first `most` bytes of a file; one that is not a plain file is not waited for.

    Raises:
        OSError: it cannot be read, or is not a plain file.
    """
    with open_plain(path) as file:
        return file.read(most)


def open_plain(path: Path) -> BinaryIO:
    """Open a file; a named pipe is not waited for, and no device read.

    Raises:
        OSError: it cannot be read, or is not a plain file.
    """
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "is not a plain file", str(path))
    return os.fdopen(number, "rb")


def open_inside(root: Path, name: str, cache: Path) -> BinaryIO:
    """Open a file of the folder; what was put in its place since it was listed is not read.

    Raises:
        OSError: it leads elsewhere, is not a file, or cannot be read.
    """
    # A named pipe without a writer would be waited for.
    number = os.open(root / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        real = Path(f"/proc/self/fd/{number}").readlink()
        if not stat.S_ISREG(os.fstat(number).st_mode) or not is_inside(real, root, cache):
            raise OSError(errno.ELOOP, "is not a file of the folder any more", str(root / name))
    except BaseException:
        os.close(number)
        raise
    return os.fdopen(number, "rb")
