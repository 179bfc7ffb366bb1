"""Answers a batch in the head's container: `main(FOLDER)` asks all that is not answered; its files there are fetched.

One task a request, and as many at once as the server is kept busy with.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import random
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from vllm_cluster.features.batch.on_head.client import OK, UNAUTHORIZED, ApiClient, NodeApi, Outcome
from vllm_cluster.features.batch.on_head.lines import (
    BadLine,
    BatchLine,
    BatchProblem,
    Place,
    answer_row,
    checksum,
    error_row,
    is_error,
    model_of,
    options_checksum,
    parse,
    place_of,
)
from vllm_cluster.features.batch.on_head.progress import Concurrency, Meter, Progress, read_load
from vllm_cluster.features.batch.on_head.room import NoRoom, lack_of_room
from vllm_cluster.features.batch.on_head.row_file import RowFile
from vllm_cluster.wire.metrics import MAX_METRICS
from vllm_cluster.wire.refusals import fitting_tokens

# 1, 2, 4, … 30 s, about two minutes in all: a server that ends is noticed sooner.
ATTEMPTS, PAUSE_MAX = 8, 30.0
TURN_SECONDS, SAMPLE_SECONDS, REPORT_SECONDS = 0.5, 10.0, 1.0
# Of the lines that are open: pictures are megabytes.
OPEN_BYTES = 64 << 20
# vLLM's own API server goes first.
NICE = 10
IN_USE, FAILED = 75, 1


@dataclass(frozen=True)
class Options:
    """`fields` are added to requests that lack them; `concurrency` None finds it; one answer may take `seconds`."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    concurrency: int | None = None
    seconds: float = 3600.0


class Runner:
    """One run over lines, whose rows are added to a file as they come."""

    def __init__(
        self,
        *,
        lines: Iterator[tuple[Place, bytes]],
        rows: RowFile,
        meter: Meter,
        client: ApiClient,
        server: NodeApi,
        options: Options,
        report: Callable[[Progress], None],
    ) -> None:
        self._lines, self._rows, self.meter = lines, rows, meter
        self._client, self._server, self._options, self._report = client, server, options, report
        self._concurrency = Concurrency()
        self._open: set[asyncio.Task[None]] = set()
        self._bytes = self._recoveries = 0
        self._recovering = asyncio.Lock()
        # Each row takes several times its size while it is made: one at a time.
        self._writer = ThreadPoolExecutor(1)
        self._ended = asyncio.Event()
        self._error: BaseException | None = None

    async def run(self) -> None:
        """Ask until each line has a row.

        Raises:
            BatchProblem: the model was stopped or replaced, or the disk is nearly full.
            OSError: a row cannot be written; those that were are whole.
        """
        watch = asyncio.create_task(self._watch())
        watch.add_done_callback(self._end)
        try:
            for place, raw in self._lines:
                while len(self._open) >= self.level or (self._open and self._bytes + len(raw) > OPEN_BYTES):
                    await self._turn()
                self._begin(place, raw)
            while self._open:
                await self._turn()
        finally:
            tasks = [watch, *self._open]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._writer.shutdown()
        self._report(self._progress())

    @property
    def level(self) -> int:
        """How many requests may be open now."""
        return self._options.concurrency or self._concurrency.level

    def _progress(self) -> Progress:
        return self.meter.progress(time.monotonic(), len(self._open), self.level)

    async def _turn(self) -> None:
        """Wait until a request has ended."""
        await self._ended.wait()
        self._ended.clear()
        if self._error:
            raise self._error

    def _end(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        if not task.cancelled():
            self._error = self._error or task.exception()
        self._ended.set()

    def _begin(self, place: Place, raw: bytes) -> None:
        try:
            line = parse(raw, place, self._server.model, self._options.fields)
        except BadLine as error:
            self._fail(place, error.custom_id, None, "invalid_line", error.message)
            return
        self._bytes += len(raw)
        task = asyncio.create_task(self._settle(line, len(raw)))
        self._open.add(task)
        task.add_done_callback(self._end)

    async def _settle(self, line: BatchLine, size: int) -> None:
        """Ask until there is an answer, or it is known that there will be none."""
        attempt = 0
        try:
            while True:
                attempt += 1
                try:
                    recoveries, outcome = self._recoveries, await self._ask(line)
                except NoRoom:
                    # A row of it would be one that failed, of a request with which nothing is wrong.
                    if attempt == ATTEMPTS:
                        raise
                    await self._pause(attempt)
                    continue
                if outcome is None:
                    return
                if outcome.refused and not (outcome.lacks_model and not line.model):
                    self._refuse(line, outcome)
                    return
                if not outcome.busy:
                    await self._recover(outcome, recoveries, attempt)
                if outcome.lacks_model:  # though the model is still the same one
                    self._refuse(line, outcome)
                    return
                if attempt == ATTEMPTS:
                    status = outcome.status if outcome.status > OK else None
                    message = f"{outcome.message} ({ATTEMPTS} attempts)"
                    self._fail(line.place, line.custom_id, status, "no_answer", message)
                    return
                await self._pause(attempt)
        finally:
            self._bytes -= size

    async def _pause(self, attempt: int) -> None:
        await asyncio.sleep(min(PAUSE_MAX, 2.0 ** (attempt - 1)) * (0.5 + random.random() / 2))  # noqa: S311

    async def _ask(self, line: BatchLine) -> Outcome | None:
        """Ask once; None where the answer is written."""
        async with self._client.post(line, self._server.names) as outcome:
            if not outcome.answered:
                return outcome
            try:
                # Of megabytes it takes seconds, in which other answers come.
                made = self._writer.submit(answer_row, line, outcome.name, outcome.raw)
                row = await asyncio.wrap_future(made)
            except ValueError as error:
                return replace(outcome, message=f"the answer cannot be kept: {error}", final=True)
            self._rows.append(row)
            usage = outcome.body.get("usage")
            self.meter.add_answer(usage if isinstance(usage, dict) else {})
            return None

    async def _recover(self, outcome: Outcome, recoveries: int, attempt: int) -> None:
        """Wait until the server is there, once for all requests that failed before."""
        async with self._recovering:
            if recoveries != self._recoveries:
                return
            before = self._client.address
            await self._server.recover(outcome.message)
            if outcome.status == UNAUTHORIZED and self._client.address == before and attempt > 1:
                raise BatchProblem(f"the server refuses the requests: {outcome.message}", hint="vcluster status")
            self._recoveries += 1

    def _refuse(self, line: BatchLine, outcome: Outcome) -> None:
        fits = fitting_tokens(outcome.message)
        text = f"{outcome.message}: max_tokens of at most {fits} fit" if fits else outcome.message
        self._fail(line.place, line.custom_id, outcome.status, "refused", text)

    def _fail(self, place: Place, custom_id: str | None, status: int | None, code: str, message: str) -> None:
        self._rows.append(error_row(place, custom_id, status, code, message))
        self.meter.failed += 1

    async def _watch(self) -> None:
        """Do what is done now and then: the disk, the server's load, the report."""
        reported = 0.0
        while True:
            now = time.monotonic()
            self._rows.sync(now)
            if not self._options.concurrency:
                await self._sample()
                self._ended.set()  # more may be open now
            if now - reported >= REPORT_SECONDS:
                reported = now
                self._server.ensure_same()
                self._report(self._progress())
            await asyncio.sleep(TURN_SECONDS)

    async def _sample(self) -> None:
        try:
            status, raw = await self._client.get("/metrics", MAX_METRICS, SAMPLE_SECONDS)
            load = read_load(raw.decode("utf-8", "replace")) if status == OK else None
        except Exception:  # what a server reports of itself ends no batch; requests find out what is wrong with it
            return
        if load:
            self._concurrency.add(load, len(self._open))


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
        if why := lack_of_room(self.folder):
            raise BatchProblem(why)
        self.write("running", progress=asdict(now))

    def run(self) -> int:
        """Answer what is left; the exit code."""
        try:
            self.write("running", note="")
            with closing(RowFile(self.folder / "output.jsonl", own=True)) as rows:
                asyncio.run(self._answer(rows))
        except BatchProblem as error:
            return self._fail(error.message)
        except OSError as error:
            return self._fail(str(error))
        except Exception as error:  # without a status it would be taken for one that was killed, and started again
            traceback.print_exc()
            return self._fail(f"{type(error).__name__}: {error}")
        self.write("done")
        return 0

    def _fail(self, why: str) -> int:
        self.write("failed", error=why)
        return FAILED

    async def _answer(self, rows: RowFile) -> None:
        wanted, failed, count, models = self._wanted, 0, 0, set(self._wanted["models"])
        for row in rows.rows():
            # Whoever starts it may lack rows of this file. Each run was bound to the model of the first answer.
            models = models or {model_of(row)} - {""}
            place = place_of(row)
            if place and place.line >= len(self._rows_of):
                self._rows_of.extend(bytes(place.line + 1 - len(self._rows_of)))
            self._rows_of[place.line if place else 0] = 1
            failed, count = failed + is_error(row), count + 1
        rows.begin()
        total = sum(1 for _ in self._lines())
        meter = Meter(total, count - failed, failed, time.monotonic())
        options = Options(wanted["fields"], wanted["concurrency"], wanted["seconds"])
        async with ApiClient(options.seconds, self.folder) as client:
            state, key = Path(wanted["state"]), Path(os.environ.get("VCLUSTER_API_KEY_FILE", "/nonexistent"))
            server = NodeApi(client, state, key, wanted["wait"], lambda note: self.write("running", note=note))
            if count < total:
                await server.open(models)
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
    # Each open request has a connection, and a file where its answer is long; Docker may allow 1024 in all.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.umask(0o077)
    place = Path(folder)
    job = Job(place, json.loads((place / "options.json").read_text()))
    with ExitStack() as alone:
        sys.exit(job.run() if job.own(alone) else IN_USE)
