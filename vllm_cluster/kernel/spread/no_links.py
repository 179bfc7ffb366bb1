"""Writes below a cache that others may write too: each step is opened in the folder before it, and no link is followed.

A path that was looked at and is then used by its name would lead elsewhere where a link is put in its way between.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vllm_cluster.kernel.spread.plan import PullError

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# A named pipe that was put there is not waited for.
FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def folder_of(path: Path, cache: Path, *, make: bool = False) -> Iterator[int]:
    """Open the folder that a path is in, from the cache on; `make` makes those that are not there.

    Raises:
        PullError: a step on the way is a link, or a file.
        FileNotFoundError: one is not there.
    """
    number, at = os.open(cache, FOLDER), cache
    try:
        for name in path.parent.relative_to(cache).parts:
            at /= name
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=number)
            try:
                below = os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=number)
            except NotADirectoryError:
                raise PullError(f"{at} is a link or a file: nothing is written behind it") from None
            os.close(number)
            number = below
        yield number
    finally:
        os.close(number)


def remove_name(name: str, folder: int) -> None:
    """Remove a name from a folder; no error where it is gone."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def replace(name: str, text: str, folder: int) -> None:
    """Write a file so that a reader sees the old one or the new one."""
    fresh = f".{name}.vcluster-new"
    remove_name(fresh, folder)
    number = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | FILE, 0o644, dir_fd=folder)
    with os.fdopen(number, "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(number)
    os.rename(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)


def link(name: str, target: str, folder: int) -> None:
    """Put a link in the place of a name."""
    fresh = f".{name}.vcluster-link"
    remove_name(fresh, folder)
    os.symlink(target, fresh, dir_fd=folder)
    os.rename(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
