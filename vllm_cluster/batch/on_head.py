"""Runs in the head's container for as long as a batch takes: `main(FOLDER)`. What it writes there is fetched later."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from vllm_cluster.batch.engine import Options
from vllm_cluster.batch.node_api import NodeApi, key_file
from vllm_cluster.batch.problems import BatchProblem
from vllm_cluster.batch.progress import Progress
from vllm_cluster.batch.work import BatchFiles, Work

# vLLM's own API server goes first.
NICE = 10
# Left free on the head's disk: the node program writes its state there.
SPARE = 1 << 30
IN_USE, FAILED = 75, 1


class JobFolder:
    """The folder of one batch, and the status that is read there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._row: dict[str, Any] = {"phase": "starting", "note": ""}

    def own(self, stack: ExitStack) -> bool:
        """Be the only program of this batch, until the stack is left; whether it is."""
        file = stack.enter_context((self.folder / "pid").open("a+"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        return True

    def write(self, phase: str, **more: Any) -> None:
        """Replace the status; a reader sees the old one or the new one."""
        self._row |= {"phase": phase, **more}
        fresh = self.folder / "status.new"
        fresh.write_text(json.dumps(self._row))
        fresh.replace(self.folder / "status.json")

    def report(self, now: Progress) -> None:
        """Keep how far it is.

        Raises:
            BatchProblem: the disk is nearly full.
        """
        if (free := shutil.disk_usage(self.folder).free) < SPARE:
            raise BatchProblem(
                f"{free >> 20} MB are free on the head's disk ({self.folder}), and {SPARE >> 20} stay free"
            )
        self.write("running", progress=asdict(now))


def run(folder: Path, options: Mapping[str, Any]) -> int:
    """Answer what is left; the exit code."""
    job = JobFolder(folder)
    with ExitStack() as alone:
        if not job.own(alone):
            return IN_USE
        try:
            job.write("starting")
            _answer(job, options)
        except KeyboardInterrupt:
            job.write("stopped")
        except (BatchProblem, OSError) as error:
            job.write("failed", error=error.message if isinstance(error, BatchProblem) else str(error))
            return FAILED
    return 0


def _answer(job: JobFolder, options: Mapping[str, Any]) -> None:
    files = BatchFiles(*(job.folder / f"{name}.jsonl" for name in ("input", "output", "errors")))
    known = {name: options[name] for name in ("copies", "fields", "concurrency", "seconds")}
    with ExitStack() as stack:
        work = Work(files, Options(**known), stack)
        job.write("starting", pid=os.getpid())
        if work.left:
            server = NodeApi(
                Path(options["state"]), key_file(), options["wait"], lambda note: job.write("running", note=note)
            )
            server.open(work.models)
            work.run(server, job.report)
        found = work.summary()
    job.write("done", result=asdict(found))


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(folder: str) -> None:
    """Run the batch of a folder."""
    os.nice(NICE)
    os.umask(0o077)
    signal.signal(signal.SIGTERM, _stop)
    place = Path(folder)
    sys.exit(run(place, json.loads((place / "options.json").read_text())))
