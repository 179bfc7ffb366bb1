"""Moves the blobs of an image between hosts as a pull moves the files of a model, by the same program.

Runs in a folder of its own, which goes with it. The first line of standard input has the files of that program, the
answer is {"folder"}, where the blobs are; the next line is the plan. The first host of the plan serves its blobs, any
other gets all of them and serves them too. Prints how far it is, {"serving"}, {"whole"} or {"error"}, and ends with its
input.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_cluster.kernel.spread.spread import SpreadProgress

PROGRAM, PLAN, BLOBS = "program", "plan.json", "blobs"
REPORT_SECONDS = 1
# Without a byte there is no way to those that have it; with no error a disk may take its time with what has come.
REACH_SECONDS, STALL_SECONDS = 15, 120


def _report(**row: object) -> None:
    """Print one message."""
    print(json.dumps(row), flush=True)


class Watch:
    """Reports what has come, and ends the program where nothing does."""

    def __init__(self) -> None:
        self._bytes, self._moved, self._due, self._error = 0, time.monotonic(), 0.0, ""

    def __call__(self, progress: SpreadProgress) -> None:
        """Note how far it is."""
        now = time.monotonic()
        self._error = progress.error or self._error
        if progress.bytes > self._bytes:
            self._bytes, self._moved, self._error = progress.bytes, now, ""
        elif now - self._moved > (STALL_SECONDS if self._bytes and not self._error else REACH_SECONDS):
            _report(error=self._error or "no byte comes", bytes=self._bytes)
            os._exit(1)
        if now > self._due:
            self._due = now + REPORT_SECONDS
            _report(bytes=self._bytes)


def carry(document: str) -> None:
    """Carry out the plan.

    Raises:
        OSError: the port is used, or the disk is full.
    """
    from vllm_cluster.kernel.spread.plan import PullError, read_plan  # noqa: PLC0415 - it has just been brought
    from vllm_cluster.kernel.spread.spread import receive, serve  # noqa: PLC0415
    from vllm_cluster.kernel.spread.store import Store  # noqa: PLC0415

    Path(PLAN).write_text(document)
    try:
        plan = read_plan(Path(PLAN))
    except PullError as error:
        raise OSError(str(error)) from error
    is_source = plan.me == plan.hosts[0].name
    free = shutil.disk_usage(".").free
    if not is_source and free < plan.total:
        raise OSError(f"{free / 1e9:.1f} GB free in {Path.cwd()}, and {plan.total / 1e9:.1f} GB are needed")
    server = serve(plan, Store(plan))
    _report(serving=True)
    if not is_source:
        try:
            receive(plan, server.store, Watch())
        except PullError as error:
            raise OSError(str(error)) from error
        _report(whole=True)


def main() -> None:
    """Run until the input ends."""
    for path, text in json.loads(sys.stdin.readline()).items():
        place = Path(PROGRAM) / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    sys.path.insert(0, str(Path(PROGRAM).resolve()))
    Path(BLOBS).mkdir()
    _report(folder=str(Path(BLOBS).resolve()))
    try:
        carry(sys.stdin.readline())
    except OSError as error:
        _report(error=error.strerror or str(error), bytes=0)
    # Also one that cannot serve its blobs: they go with this program, and another way may lead to them.
    sys.stdin.read()


if __name__ == "__main__":
    main()
