"""One batch over its three files: the same on a laptop and in the head's container."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from vllm_cluster.batch.engine import Engine, Options, Server
from vllm_cluster.batch.lines import options_checksum, place_of
from vllm_cluster.batch.output import RowFile
from vllm_cluster.batch.progress import Meter, Progress
from vllm_cluster.batch.source import Source


@dataclass(frozen=True)
class BatchFiles:
    """What is read, where answers go, and where lines without an answer go."""

    source: Path
    output: Path
    errors: Path


@dataclass(frozen=True)
class BatchResult:
    """The requests of the input, those answered in all and by this run, those without an answer, and its tokens.

    `invalid` of those without an answer get none from the same command either.
    """

    total: int
    answered: int
    answered_now: int
    failed: int
    invalid: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float


class Work:
    """The files of a batch, opened and compared before any host is asked."""

    def __init__(self, files: BatchFiles, options: Options, stack: ExitStack) -> None:
        """Open them, until the stack is left.

        Raises:
            BatchProblem, OSError: one cannot be used, or they do not fit together.
        """
        files.source.open("rb").close()
        self._began, self._options = monotonic(), options
        self._source = Source(files.source, options.copies, options_checksum(options.fields))
        self.output, self.errors = _open(files.output, stack), _open(files.errors, stack)
        self._answered, self.models = self.output.read(options.copies)
        total = self._source.count(self._answered, files.output)
        for _ in self.errors.rows():  # only a file of errors is cleared
            pass
        self.meter = Meter(total, self._answered.count, monotonic())

    @property
    def left(self) -> int:
        """How many requests are not answered yet."""
        return self.meter.total - self._answered.count

    def run(self, server: Server, report: Callable[[Progress], None]) -> None:
        """Ask what is left; lines that failed before are asked again."""
        self.begin()
        engine = Engine(
            lines=self._source.open(self._answered),
            names=self._answered.names,
            meter=self.meter,
            output=self.output,
            errors=self.errors,
            server=server,
            options=self._options,
            report=report,
        )
        engine.run()

    def begin(self) -> None:
        """Cut off what a kill has torn, and forget the reasons of the run before."""
        self.output.begin()
        self.errors.clear()

    def take(self, row: bytes) -> None:
        """Add a row that another run of this batch wrote; one that is there is not added again."""
        place = place_of(row)
        if place and not self._answered.checksum(place.line, place.copy):
            self._answered.add(place, "the head")
            self.output.append(row)
            self.meter.answered += 1
            self.output.sync(monotonic())

    def summary(self) -> BatchResult:
        """What was done."""
        meter = self.meter
        return BatchResult(
            total=meter.total,
            answered=meter.before + meter.answered,
            answered_now=meter.answered,
            failed=meter.failed,
            invalid=meter.invalid,
            prompt_tokens=meter.prompt_tokens,
            completion_tokens=meter.tokens,
            seconds=monotonic() - self._began,
        )


def _open(path: Path, stack: ExitStack) -> RowFile:
    file = RowFile(path)
    stack.callback(file.close)
    return file
