"""Answer a file of requests with the served model, from this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from vllm_cluster.actions.head_api import HeadApi
from vllm_cluster.batch.engine import Options
from vllm_cluster.batch.problems import BatchProblem, InUse
from vllm_cluster.batch.progress import Progress
from vllm_cluster.batch.work import BatchFiles, BatchResult, Work
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
    with opened(files, options) as work, ExitStack() as stack:
        if work.left:
            server = stack.enter_context(HeadApi(inventory, emit, wait, runtime))
            server.ensure_model(work.models, files.output)
            try:
                work.run(server, lambda now: emit(progress_event(now)))
            except KeyboardInterrupt:
                raise interrupted(work, files, "the same command continues") from None
        return work.summary()


@contextmanager
def opened(files: BatchFiles, options: Options) -> Iterator[Work]:
    """The files of a batch; its engine, which also runs on the head, knows none of the errors that come of it here.

    Raises:
        UsageError: the files do not fit together.
        Locked: another run writes the output.
    """
    try:
        with ExitStack() as stack:
            _ensure_apart(files)
            yield Work(files, options, stack)
    except InUse as error:
        raise Locked(error.message) from None
    except BatchProblem as error:
        kind: Callable[..., VclusterError] = UsageError if error.usage else VclusterError
        raise kind(error.message, hint=error.hint or None) from None


def interrupted(work: Work, files: BatchFiles, more: str) -> Interrupted:
    """How far it was when a person ended it."""
    found = work.summary()
    done = f"{found.answered} of {count(found.total, 'request')} are answered in {files.output}"
    return Interrupted(f"Interrupted. {done}; {more}.", again=())


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
