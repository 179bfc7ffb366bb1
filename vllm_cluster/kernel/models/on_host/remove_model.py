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


def _remove(root: Path) -> int:
    """Remove a model, and return the bytes that it took."""
    size = _disk_bytes(root) + _disk_bytes(aside(root))
    with suppress(FileNotFoundError):
        shutil.rmtree(aside(root))
    if root.is_dir():
        # First out of the way as one: nothing finds half of a model.
        root.rename(aside(root))
        shutil.rmtree(aside(root))
    return size


def _answer(do: str, cache: Path, folder: str, kind: str) -> dict[str, object]:
    """Do what is asked for, and return the row."""
    root = cache / folder
    ensure_own(root, cache, kind)
    with claimed(root) as free:
        if not free:
            return {"there": True, "size": 0, "locked": True}
        if do == "remove":
            return {"size": _remove(root)}
    return {"there": root.is_dir() or aside(root).is_dir(), "size": _disk_bytes(root) + _disk_bytes(aside(root))}


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
