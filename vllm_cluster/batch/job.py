"""Runs in the head's container for as long as a batch takes: `main(FOLDER)`. What it writes there is fetched later."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vllm_cluster.batch.client import ApiClient
from vllm_cluster.batch.lines import Place, checksum, is_error, options_checksum, place_of
from vllm_cluster.batch.node_api import NodeApi
from vllm_cluster.batch.problems import BatchProblem
from vllm_cluster.batch.progress import Meter, Progress
from vllm_cluster.batch.rows import RowFile
from vllm_cluster.batch.runner import Options, Runner

# vLLM's own API server goes first.
NICE = 10
# Left free on the head's disk: the node program writes its state there.
SPARE = 1 << 30
IN_USE, FAILED = 75, 1


class Job:
    """The folder of one batch: its lines, the rows so far, and the status that is read there."""

    def __init__(self, folder: Path, wanted: Mapping[str, Any]) -> None:
        self.folder, self._wanted = folder, wanted
        self._status: dict[str, Any] = {}
        self._rows_of = bytearray()

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
        self._status |= {"phase": phase, **more}
        fresh = self.folder / "status.new"
        fresh.write_text(json.dumps(self._status))
        fresh.replace(self.folder / "status.json")

    def report(self, now: Progress) -> None:
        """Keep how far it is.

        Raises:
            BatchProblem: the disk is nearly full.
        """
        if (free := shutil.disk_usage(self.folder).free) < SPARE:
            text = f"{free >> 20} MB are free on the head's disk ({self.folder}), and {SPARE >> 20} stay free"
            raise BatchProblem(text)
        self.write("running", progress=asdict(now))

    def run(self) -> int:
        """Answer what is left; the exit code."""
        self.write("running", note="")
        try:
            with closing(RowFile(self.folder / "output.jsonl")) as rows:
                asyncio.run(self._answer(rows))
        except (BatchProblem, OSError) as error:
            self.write("failed", error=error.message if isinstance(error, BatchProblem) else str(error))
            return FAILED
        self.write("done")
        return 0

    async def _answer(self, rows: RowFile) -> None:
        wanted, failed, count = self._wanted, 0, 0
        for row in rows.rows():
            place = place_of(row)
            if place and place.line >= len(self._rows_of):
                self._rows_of.extend(bytes(place.line + 1 - len(self._rows_of)))
            self._rows_of[place.line if place else 0] = 1
            failed, count = failed + is_error(row), count + 1
        rows.begin()
        total = sum(1 for _ in self._lines())
        meter = Meter(total, count - failed, failed, time.monotonic())
        options = Options(wanted["fields"], wanted["concurrency"], wanted["seconds"])
        async with ApiClient(options.seconds) as client:
            state, key = Path(wanted["state"]), Path(os.environ.get("VCLUSTER_API_KEY_FILE", "/nonexistent"))
            server = NodeApi(client, state, key, wanted["wait"], lambda note: self.write("running", note=note))
            if count < total:
                await server.open(set(wanted["models"]))
            runner = Runner(
                lines=self._left(options),
                rows=rows,
                meter=meter,
                client=client,
                server=server,
                options=options,
                report=self.report,
            )
            await runner.run()

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Each line, by its number in the input."""
        with (self.folder / "input").open("rb") as file:
            for line in file:
                number, _, raw = line.partition(b" ")
                yield int(number), raw.rstrip(b"\n")

    def _left(self, options: Options) -> Iterator[tuple[Place, bytes]]:
        """What has no row yet."""
        shape = options_checksum(options.fields)
        for number, raw in self._lines():
            if number >= len(self._rows_of) or not self._rows_of[number]:
                yield Place(number, checksum(raw, shape)), raw


def main(folder: str) -> None:
    """Run the batch of a folder."""
    os.nice(NICE)
    os.umask(0o077)
    place = Path(folder)
    job = Job(place, json.loads((place / "options.json").read_text()))
    with ExitStack() as alone:
        sys.exit(job.run() if job.own(alone) else IN_USE)
