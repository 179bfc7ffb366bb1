"""Ask all that is not answered: one task a request, and as many at once as the server is kept busy with."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from vllm_cluster.batch.client import MAX_METRICS, OK, UNAUTHORIZED, ApiClient, Outcome
from vllm_cluster.batch.lines import BadLine, BatchLine, Place, answer_row, error_row, parse
from vllm_cluster.batch.node_api import NodeApi
from vllm_cluster.batch.problems import BatchProblem
from vllm_cluster.batch.progress import Meter, Progress
from vllm_cluster.batch.rows import RowFile

# 1, 2, 4, … 30 s, about two minutes in all: a server that ends is noticed sooner.
ATTEMPTS, PAUSE_MAX = 8, 30.0
TURN_SECONDS, SAMPLE_SECONDS, REPORT_SECONDS = 0.5, 10.0, 1.0
# Of the lines that are open: pictures are megabytes.
OPEN_BYTES = 64 << 20


# vLLM runs 256 or 1024 at once on GPUs by default, so 128 are not too many. To double from 32
# cost three seconds of a batch of sixteen on two H200 hosts.
START, CEILING = 128, 1024


@dataclass(frozen=True)
class Load:
    """The server at one moment."""

    running: float
    waiting: float


class Concurrency:
    """The level: doubled until requests wait in the server, then twice as many as run.

    So the queue is as long as what runs: answers of one length end together, and their places are filled at once. With
    a tenth the sandbox's model wrote a fifth less than with 500 open requests. A longer queue gives no token more.
    """

    def __init__(self) -> None:
        self.level = START
        self._waited = False

    def add(self, load: Load, in_flight: int) -> None:
        """Take a sample in; `in_flight` is how many requests are open from here."""
        waits, self._waited = self._waited, load.waiting >= 1
        if self._waited:
            # Requests that came together wait for one step of the server, which is not a queue: only the second counts.
            if waits:
                self.level = max(1, min(2 * self.level, 2 * round(load.running) + 2, CEILING))
        elif in_flight >= 0.9 * self.level:
            self.level = min(2 * self.level, CEILING)


def read_load(metrics: str) -> Load | None:
    """Read the load from the text of vLLM's /metrics, summed over its engines; None where it is not there."""
    sums: dict[str, float] = {}
    for line in metrics.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in ("vllm:num_requests_running", "vllm:num_requests_waiting"):
            try:
                sums[name] = sums.get(name, 0.0) + float(line.rpartition(" ")[2])
            except ValueError:
                return None
    return Load(*(sums[name] for name in sorted(sums))) if len(sums) == 2 else None


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
                recoveries, outcome = self._recoveries, await self._ask(line)
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
                pause = min(PAUSE_MAX, 2.0 ** (attempt - 1)) * (0.5 + random.random() / 2)  # noqa: S311
                await asyncio.sleep(pause)
        finally:
            self._bytes -= size

    async def _ask(self, line: BatchLine) -> Outcome | None:
        """Ask once; None where the answer is written."""
        async with self._client.post(line, self._server.names) as outcome:
            if not outcome.answered:
                return outcome
            self._rows.append(answer_row(line, str(outcome.body.get("id") or line.place.id), outcome.raw))
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
        self._fail(line.place, line.custom_id, outcome.status, "refused", outcome.message)

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
                self._report(self._progress())
            await asyncio.sleep(TURN_SECONDS)

    async def _sample(self) -> None:
        try:
            status, raw = await self._client.get("/metrics", MAX_METRICS, SAMPLE_SECONDS)
        except (OSError, asyncio.TimeoutError, aiohttp.ClientError):
            return  # requests find out what is wrong with it
        load = read_load(raw.decode("utf-8", "replace")) if status == OK else None
        if load:
            self._concurrency.add(load, len(self._open))
