"""Answer a file of requests with the served model, from this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from vllm_cluster.actions.head_api import HeadApi
from vllm_cluster.batch.engine import Engine, Options
from vllm_cluster.batch.lines import options_checksum
from vllm_cluster.batch.output import RowFile
from vllm_cluster.batch.problems import BatchProblem, InUse
from vllm_cluster.batch.progress import Meter, Progress
from vllm_cluster.batch.source import Source
from vllm_cluster.errors import (
    Interrupted,
    Locked,
    UsageError,
    VclusterError,
)
from vllm_cluster.events import Emit, Event
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.runtime import SYSTEM, Runtime
from vllm_cluster.text import age, count

# Through a tunnel each request has a connection of its own (transport/forward).
CEILING = 500


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
    now: int
    failed: int
    invalid: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float


def batch(
    inventory: Inventory, files: BatchFiles, options: Options, emit: Emit, *, wait: float, runtime: Runtime = SYSTEM
) -> BatchResult:
    """Answer what is not answered yet; the server may be away for `wait` seconds at a time.

    Raises:
        UsageError: the files do not fit together.
        PreflightFailed: no model is ready, or another one than that of the answers so far.
        HostError: the model was replaced, failed, or did not come back in time.
        Interrupted: a person ended it.
    """
    with _plain_errors(), ExitStack() as stack:
        work = _Work(files, options, stack)
        if work.left:
            server = stack.enter_context(HeadApi(inventory, emit, wait, runtime))
            server.ensure_model(work.models, files.output)
            work.run(server, options, emit)
        return work.summary()


class _Work:
    """The files of a batch, opened and compared before any host is asked."""

    def __init__(self, files: BatchFiles, options: Options, stack: ExitStack) -> None:
        files.source.open("rb").close()
        _ensure_apart(files)
        self._began, self._files = monotonic(), files
        self._source = Source(files.source, options.copies, options_checksum(options.fields))
        self._output, self._errors = _open(files.output, stack), _open(files.errors, stack)
        self._answered, self.models = self._output.read(options.copies)
        total = self._source.count(self._answered, files.output)
        for _ in self._errors.rows():  # what is no file of errors is not cleared
            pass
        self._meter = Meter(total, self._answered.count, monotonic())
        self.left = total - self._answered.count

    def run(self, server: HeadApi, options: Options, emit: Emit) -> None:
        """Ask what is left; lines that failed before are asked again."""
        self._output.begin()
        self._errors.clear()
        engine = Engine(
            lines=self._source.open(self._answered),
            names=self._answered.names,
            meter=self._meter,
            output=self._output,
            errors=self._errors,
            server=server,
            options=options,
            report=lambda now: emit(progress_event(now)),
        )
        try:
            engine.run()
        except KeyboardInterrupt:
            found = self.summary()
            done = f"{found.answered} of {count(found.total, 'request')} are answered in {self._files.output}"
            raise Interrupted(f"Interrupted. {done}; the same command continues.", again=()) from None

    def summary(self) -> BatchResult:
        """What was done."""
        meter = self._meter
        return BatchResult(
            total=meter.total,
            answered=meter.before + meter.answered,
            now=meter.answered,
            failed=meter.failed,
            invalid=meter.invalid,
            prompt_tokens=meter.prompt_tokens,
            completion_tokens=meter.tokens,
            seconds=monotonic() - self._began,
        )


def progress_event(now: Progress) -> Event:
    """How far it is, for people and for programs."""
    left = "" if not now.seconds_left or now.seconds_left < 1 else f", about {age(now.seconds_left)} left"
    failed = f", {now.failed} without an answer" if now.failed else ""
    text = f"answering {now.answered}/{now.total}{failed}, {now.tokens_per_second:.0f} tokens/s, {now.in_flight} open"
    data = {
        "total": now.total,
        "answered": now.answered,
        "failed": now.failed,
        "concurrency": now.concurrency,
        "tokens_per_second": round(now.tokens_per_second, 1),
        "seconds_left": None if now.seconds_left is None else round(now.seconds_left),
    }
    return Event("progress", text + left, data=data)


def _ensure_apart(files: BatchFiles) -> None:
    for path in (files.output, files.errors):
        if path.exists() and path.samefile(files.source):
            raise UsageError(f"{path} is the input", hint="name another output with -o")
    if files.output.absolute() == files.errors.absolute():
        raise UsageError(f"{files.errors} is the output", hint="name another file with --errors")


def _open(path: Path, stack: ExitStack) -> RowFile:
    file = RowFile(path)
    stack.callback(file.close)
    return file


@contextmanager
def _plain_errors() -> Iterator[None]:
    """The engine knows none of our errors, as it also runs on the head."""
    try:
        yield
    except InUse as error:
        raise Locked(error.message) from None
    except BatchProblem as error:
        kind: Callable[..., VclusterError] = UsageError if error.usage else VclusterError
        raise kind(error.message, hint=error.hint or None) from None
