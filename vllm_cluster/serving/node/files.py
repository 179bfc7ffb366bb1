"""Files of the state volume: replaced whole, and on the disk where they must outlive a power cut."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from vllm_cluster.serving.node.process import log_line

# A full disk is reported once in a while, and not at each try: the container's log is on a disk, too.
REPORT_SECONDS = 60.0
_reported: dict[Path, float] = {}


def write_whole(path: Path, content: Mapping[str, object], *, sync: bool = False) -> bool:
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


FOLDER = "compiled"
# The image that runs, and the one before it, to which a user may go back.
KEPT = 2


def keep_compiled(state: Path, current: str) -> None:
    """Use the folder of the current image, and remove those of all images but the one used before it."""
    folder = state / FOLDER
    try:
        (folder / current).mkdir(parents=True, exist_ok=True, mode=0o700)
        os.utime(folder / current)  # when it was used last
        # A clock that was put back makes the others look newer: the current one is not among them.
        others = [path for path in folder.iterdir() if path.name != current]
        others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return  # vLLM then compiles without, and logs it
    for old in others[KEPT - 1 :]:
        shutil.rmtree(old, ignore_errors=True)
