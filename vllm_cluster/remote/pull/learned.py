"""The hashes of objects of a bucket: no list has them, so a host learns each with the bytes.

They are kept beside the manifest, each with the ETag that it is of, so that the next pull knows what is here.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from vllm_cluster.remote.pull.plan import PulledFile, write_whole


class Learned:
    """What is known of the files by their paths; another process of this host may write it too, between two looks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._rows: dict[str, dict[str, Any]] = {}
        # Of files that have no place yet.
        self._hashes: dict[str, str] = {}

    def begin(self, files: Sequence[PulledFile], root: Path, partials: Sequence[Path]) -> None:
        """Drop what is here of another object than is wanted, whole or partial, and what nothing is known of."""
        self._read()
        rows = {}
        for file, partial in zip(files, partials, strict=True):
            row = self._rows.get(file.path, {})
            same = row.get("etag") == file.etag
            place = root / file.path
            if same and _seen(place) == (file.size, row.get("mtime_ns")):
                rows[file.path] = row
                continue
            rows[file.path] = {"etag": file.etag, "sha256": ""}
            place.unlink(missing_ok=True)
            if not same:
                partial.unlink(missing_ok=True)
        with self._lock:
            self._rows = rows
            self._write()

    def blob(self, file: PulledFile) -> str:
        """The sha256 of a file; empty where it is not known yet."""
        if found := self._hashes.get(file.path) or self._of(file):
            return found
        self._read()
        return self._of(file)

    def learn(self, file: PulledFile, blob: str) -> None:
        """Keep the hash of a file until it gets its place."""
        self._hashes[file.path] = blob

    def note(self, file: PulledFile, partial: Path) -> None:
        """Note what is about to get its place."""
        with self._lock:
            self._read()
            row = {"etag": file.etag, "sha256": self.blob(file), "mtime_ns": _seen(partial)[1]}
            self._rows[file.path] = row
            self._write()

    def _of(self, file: PulledFile) -> str:
        row = self._rows.get(file.path, {})
        return str(row.get("sha256", "")) if row.get("etag") == file.etag else ""

    def _read(self) -> None:
        with self._lock, suppress(OSError, ValueError):
            found = json.loads(self._path.read_text())
            self._rows = {path: row for path, row in found["files"].items() if isinstance(row, dict)}

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._path, {"v": 1, "files": self._rows})


def _seen(path: Path) -> tuple[int, int]:
    """The size and the time of a file; -1 where there is none."""
    try:
        found = path.stat()
    except OSError:
        return -1, -1
    return found.st_size, found.st_mtime_ns
