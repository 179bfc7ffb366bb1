"""Files of the state volume: replaced whole, and on the disk where they must outlive a power cut."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm_cluster.remote.node.process import log_line

# A full disk is reported once in a while, and not at each try: the container's log is on a disk, too.
REPORT_SECONDS = 60.0
_reported: dict[Path, float] = {}


def load(path: Path) -> dict[str, Any]:
    """A JSON object, empty where there is none that can be read."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write_whole(path: Path, content: Mapping[str, Any], *, sync: bool = False) -> bool:
    """Replace a JSON file so that a reader sees the old one or the new one; a full disk is outlived.

    `sync` waits until it is on the disk: else a power cut may leave NULs in its place.
    """
    fresh = path.with_name(path.name + ".new")
    try:
        with fresh.open("w") as file:
            json.dump(content, file)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        fresh.chmod(0o644)
        fresh.replace(path)
        if sync:
            sync_folder(path.parent)
    except OSError as error:
        now = time.monotonic()
        if now - _reported.get(path, -REPORT_SECONDS) >= REPORT_SECONDS:
            _reported[path] = now
            log_line("node", f"cannot write {path}: {error}")
        return False
    _reported.pop(path, None)
    return True


def sync_file(path: Path) -> None:
    """Wait until what another has written is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Wait until a folder's names are on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
