"""Ask all that is not answered: one loop owns the files and the counts, and threads only wait for answers."""

from __future__ import annotations

import heapq
import itertools
import queue
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from vllm_cluster.batch.answered import Names
from vllm_cluster.batch.client import OK, UNAUTHORIZED, ApiAddress, ApiConnection, Outcome, Threads
from vllm_cluster.batch.concurrency import CEILING, Concurrency, Load, read_load
from vllm_cluster.batch.lines import BadLine, BatchLine, Place, answer_row, error_row, name_of, parse
from vllm_cluster.batch.output import RowFile
from vllm_cluster.batch.problems import BatchProblem
from vllm_cluster.batch.progress import Meter, Progress

# 1, 2, 4, … 30 s, about two minutes in all: a server that ends is noticed sooner.
ATTEMPTS, PAUSE_MAX = 8, 30.0
SAMPLE_SECONDS, TURN_SECONDS = 0.5, 0.25


class Server(Protocol):
    """The way to the model."""

    @property
    def model(self) -> str:
        """The name of the served model."""
        ...

    @property
    def endpoint(self) -> ApiAddress:
        """Where it answers now."""
        ...

    def recover(self, why: str) -> None:
        """Wait until it answers again; `endpoint` may then be another one. Raises where that will not be."""
        ...


@dataclass(frozen=True)
class Options:
    """`fields` are added to each request that lacks them; `concurrency` None finds it; seconds one answer may take."""

    copies: int = 1
    fields: Mapping[str, Any] = field(default_factory=dict)
    concurrency: int | None = None
    ceiling: int = CEILING
    seconds: float = 3600.0
    report_seconds: float = 1.0


@dataclass
class _Open:
    line: BatchLine
    attempts: int = 0
    epoch: int = 0


@dataclass(frozen=True)
class _Answer:
    open: _Open
    outcome: Outcome


class Engine:
    """One run over an input."""

    def __init__(
        self,
        *,
        lines: Iterator[tuple[Place, bytes]],
        names: Names,
        meter: Meter,
        output: RowFile,
        errors: RowFile,
        server: Server,
        options: Options,
        report: Callable[[Progress], None],
    ) -> None:
        self._lines, self._names, self.meter, self._output, self._errors = lines, names, meter, output, errors
        self._server, self._options, self._report = server, options, report
        self._threads = Threads(server.endpoint, options.seconds)
        self.concurrency = Concurrency(ceiling=options.ceiling)
        self._later: list[tuple[float, int, _Open]] = []
        self._numbers = itertools.count()
        self._in_flight = self._epoch = 0
        self._sampling, self._sampled, self._reported = False, 0.0, 0.0
        self._over = False

    def run(self) -> None:
        """Ask until each line has an answer or an error.

        Raises:
            OSError: a file cannot be read or written; what was written is whole.
        """
        try:
            while self._fill() or self._in_flight or self._later:
                self._take()
                self._tick()
        finally:
            self._threads.close()
        self._report(self._progress())

    @property
    def level(self) -> int:
        """How many requests may be open now."""
        return min(self._options.concurrency or self.concurrency.level, self._options.ceiling)

    def _progress(self) -> Progress:
        return self.meter.progress(time.monotonic(), self._in_flight, self.level)

    def _fill(self) -> bool:
        """Open as many requests as the level allows; whether there may be more."""
        while self._in_flight < self.level:
            found = self._next()
            if found is None:
                break
            self._send(found)
        return not self._over

    def _next(self) -> _Open | None:
        if self._later and (self._later[0][0] <= time.monotonic()):
            return heapq.heappop(self._later)[2]
        # Lines that wait for another attempt are open too: a server that refuses all must not fill the memory.
        while not self._over and len(self._later) < self.level:
            place, raw = next(self._lines, (None, b""))
            if place is None:
                self._over = True
                break
            try:
                line = parse(raw, place, self._options.copies, self._server.model, self._options.fields)
                if not self._names.add(name_of(line.custom_id)):
                    raise BadLine("custom_id is that of an earlier line", line.custom_id)
            except BadLine as error:
                self._fail(place, error.custom_id, None, "invalid_line", error.message)
                continue
            return _Open(line)
        return None

    def _send(self, one: _Open) -> None:
        one.attempts, one.epoch = one.attempts + 1, self._epoch
        self._in_flight += 1
        self._threads.submit(lambda connection: _Answer(one, connection.post(one.line.path, one.line.body)))

    def _take(self) -> None:
        """Take what has come back, or wait a moment for it."""
        wait = TURN_SECONDS
        if self._later and self._in_flight < self.level:  # with no place free, only what comes back is of use
            wait = min(wait, max(0.0, self._later[0][0] - time.monotonic()))
        with_wait: float | None = wait
        while True:
            try:
                found = self._threads.results.get(timeout=with_wait) if with_wait else self._threads.results.get(False)
            except queue.Empty:
                return
            self._threads.taken()
            with_wait = None
            if isinstance(found, BaseException):
                raise found
            if isinstance(found, _Answer):
                self._in_flight -= 1
                self._settle(found.open, found.outcome)
            else:
                self._sampling = False
                if isinstance(found, Load):
                    self.concurrency.add(found, self._in_flight + 1)

    def _settle(self, one: _Open, outcome: Outcome) -> None:
        if outcome.answered:
            self._output.append(answer_row(one.line, outcome.body))
            usage = outcome.body.get("usage")
            self.meter.add_answer(usage if isinstance(usage, Mapping) else {})
        elif outcome.refused and not (outcome.lacks_model and not one.line.own_model):
            self._refuse(one, outcome)
        else:
            self._again(one, outcome)

    def _again(self, one: _Open, outcome: Outcome) -> None:
        """Ask again later, once the server is there; a request of before its last recovery needs no new one."""
        why = outcome.message or f"HTTP {outcome.status}"
        if one.epoch == self._epoch and not outcome.busy:
            before = self._server.endpoint
            self._server.recover(why)
            if outcome.status == UNAUTHORIZED and self._server.endpoint == before and one.attempts > 1:
                raise BatchProblem(f"the server refuses the requests: {why}", hint="vcluster status")
            self._epoch += 1
            self._threads.endpoint = self._server.endpoint
            self.concurrency.restart()
        if outcome.lacks_model:  # though the model is still the same one
            self._refuse(one, outcome)
            return
        if one.attempts >= ATTEMPTS:
            status = outcome.status if outcome.status > OK else None
            self._fail(one.line.place, one.line.custom_id, status, "no_answer", f"{why} ({ATTEMPTS} attempts)")
            return
        pause = min(PAUSE_MAX, 2.0 ** (one.attempts - 1)) * (0.5 + random.random() / 2)  # noqa: S311
        heapq.heappush(self._later, (time.monotonic() + pause, next(self._numbers), one))

    def _refuse(self, one: _Open, outcome: Outcome) -> None:
        self._fail(one.line.place, one.line.custom_id, outcome.status, "refused", outcome.message)

    def _fail(self, place: Place, custom_id: str | None, status: int | None, code: str, message: str) -> None:
        self._errors.append(error_row(place, custom_id, status, code, message))
        self.meter.failed += 1
        self.meter.invalid += code != "no_answer"

    def _tick(self) -> None:
        """What is done now and then: the disk, the server's load, the report."""
        now = time.monotonic()
        self._output.sync(now)
        self._errors.sync(now)
        if not self._options.concurrency and not self._sampling and now - self._sampled >= SAMPLE_SECONDS:
            self._sampling, self._sampled = True, now
            self._threads.submit(_sample)
        if now - self._reported >= self._options.report_seconds:
            self._reported = now
            self._report(self._progress())


def _sample(connection: ApiConnection) -> Load | None:
    try:
        status, raw = connection.ask("GET", "/metrics")
    except Exception:  # no picture of the server this time: requests find out what is wrong with it
        return None
    return read_load(raw.decode("utf-8", "replace"), time.monotonic()) if status == OK else None
