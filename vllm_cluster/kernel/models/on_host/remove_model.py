"""Removes a model from a host's cache, or has its size, as the user of the containers. Standard library alone.

The message has `do`, and the `folder` below the `cache`. Prints one JSON line.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def _disk_bytes(root: Path) -> int:
    """The bytes that a folder takes on the disk."""
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            with suppress(OSError):
                total += (Path(folder) / name).lstat().st_blocks * 512
    return total


def aside(root: Path) -> Path:
    """Where a model is while it is removed; what an interrupted removal left is there too."""
    return root.with_name(f".{root.name}.vcluster-removed")


def ensure_own(root: Path, cache: Path, kind: str) -> None:
    """Refuse what is outside the cache behind a symlink, and a folder without the config of a model."""
    parts = root.relative_to(cache).parts
    if not parts or ".." in parts or (kind == "hub" and not parts[-1].startswith("models--")):
        raise OSError("nothing was removed: no model has this place")
    if root.resolve() != cache.resolve() / root.relative_to(cache):
        raise OSError(f"nothing was removed: a symlink leads to {root.resolve()}")
    if kind != "hub" and root.is_dir() and not (root / "config.json").is_file():
        raise OSError("nothing was removed: no model, it has no config.json")


@contextmanager
def parent_folder(root: Path, cache: Path) -> Iterator[Path]:
    """Give the place of a model by the open folder that it is in: a link that is put in the way leads nowhere else.

    Raises:
        OSError: a step on the way is a link, or is not there.
    """
    number = os.open(cache, FOLDER)
    try:
        for name in root.relative_to(cache).parts[:-1]:
            below = os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=number)
            os.close(number)
            number = below
        yield Path(f"/proc/self/fd/{number}") / root.name
    finally:
        os.close(number)


@contextmanager
def claimed(root: Path) -> Iterator[bool]:
    """Hold the lock that a pull holds while it writes, of any cluster; whether it is free."""
    try:
        lock = os.open(root / ".vcluster" / "lock", os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield True  # a pull makes it first of all
        return
    try:
        free = True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            free = False
        except OSError:
            pass  # a file system without locks
        yield free
    finally:
        os.close(lock)


def _remove(root: Path, kind: str) -> int:
    """Remove a model, and return the bytes that it took."""
    size = _disk_bytes(root) + _disk_bytes(aside(root))
    with suppress(FileNotFoundError):
        shutil.rmtree(aside(root))
    with suppress(FileNotFoundError), _opened(root) as number:
        if kind != "hub" and not Path(f"/proc/self/fd/{number}/config.json").is_file():
            raise OSError("nothing was removed: no model, it has no config.json")
        # First out of the way as one: nothing finds half of a model.
        root.rename(aside(root))
        if not os.path.samestat(os.fstat(number), aside(root).lstat()):
            aside(root).rename(root)
            raise OSError("nothing was removed: another folder was put in its place")
        shutil.rmtree(aside(root))
    return size


@contextmanager
def _opened(root: Path) -> Iterator[int]:
    number = os.open(root, FOLDER | os.O_NOFOLLOW)
    try:
        yield number
    finally:
        os.close(number)


def _answer(do: str, cache: Path, folder: str, kind: str) -> dict[str, object]:
    """Do what is asked for, and return the row."""
    root = cache / folder
    ensure_own(root, cache, kind)
    try:
        with parent_folder(root, cache) as place, claimed(place) as free:
            if not free:
                return {"there": True, "size": 0, "locked": True}
            if do == "remove":
                return {"size": _remove(place, kind)}
            there = place.is_dir() or aside(place).is_dir()
            return {"there": there, "size": _disk_bytes(place) + _disk_bytes(aside(place))}
    except FileNotFoundError:
        return {"there": False, "size": 0}


def main() -> None:
    """Answer the message."""
    asked = json.loads(sys.stdin.readline())
    cache, folder = Path(asked["cache"]), str(asked["folder"])
    try:
        row = _answer(asked["do"], cache, folder, asked["kind"])
    except OSError as error:
        row = {"error": f"{error.strerror or error}: {error.filename or cache / folder}"}
    sys.stdout.write(json.dumps({"end": True, **row}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
