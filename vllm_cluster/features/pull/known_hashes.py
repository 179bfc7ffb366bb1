"""Keeps the hashes of a folder's files: one that was pulled before is not read again, but for its changes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from vllm_cluster.kernel.laptop import make_private, read_own_file, write_whole
from vllm_cluster.wire.reading import RefusedDocument, read
from vllm_cluster.wire.values import Name, Sha256

# A file system's clock may tick so seldom: what changed just before it was read may change again within one tick.
TICK_NANOSECONDS = 2_000_000_000


@dataclass(frozen=True)
class _Kept:
    v: Literal[1]
    hashes: Mapping[Name, Sha256] = field(default_factory=dict)


def stamp(found: os.stat_result) -> str:
    """What differs once a file was written: no program sets the time of the last change of its inode (ctime)."""
    parts = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return ":".join(map(str, parts))


def settled(before: os.stat_result, after: os.stat_result, now: float) -> str:
    """Return the stamp of a file that did not change from `before` it was read, nor shortly before; else nothing.

    `now` is the time after it was read, in seconds.
    """
    is_old = before.st_ctime_ns < now * 1e9 - TICK_NANOSECONDS
    return stamp(before) if is_old and stamp(before) == stamp(after) else ""


class KnownHashes:
    """The hashes of the files of one folder, from one pull to the next; several threads may use it."""

    def __init__(self, cache: Path, folder: Path | str) -> None:
        """`folder` is one of this machine, or names one of a host."""
        name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        self._file = cache / "hashes" / f"{name}.json"
        self._before: Mapping[str, str] = {}
        self._now: dict[str, str] = {}
        # It is only a saving: without it, or where it cannot be read, the files are hashed.
        with suppress(OSError, RefusedDocument):
            self._before = read(_Kept, read_own_file(self._file), str(self._file)).hashes

    def find(self, stamped: str) -> str | None:
        """Return the hash of a file that is as it was when it was read; None where it must be read."""
        known = self._before.get(stamped)
        if known:
            self._now[stamped] = known
        return known

    def keep(self, stamped: str, sha256: str) -> None:
        """Take a hash for the next time, where the file had settled when it was read."""
        if stamped:
            self._now[stamped] = sha256

    def save(self) -> None:
        """Write them for the next time; those of files that are gone are left out."""
        if self._now == self._before:
            return
        with suppress(OSError):
            make_private(self._file.parent)
            write_whole(self._file, json.dumps({"v": 1, "hashes": self._now}), 0o600)
