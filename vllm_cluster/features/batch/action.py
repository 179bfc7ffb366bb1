"""Answer a file of requests: the head does it, also without this machine, and is looked at and fetched from here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from vllm_cluster.features.batch.earlier import earlier, read_known
from vllm_cluster.features.batch.head_job import HeadJob
from vllm_cluster.features.batch.on_head.files import BatchFiles, BatchResult, Work
from vllm_cluster.features.batch.on_head.lines import MAX_ROW, PATHS, BatchProblem, Displaced, InUse
from vllm_cluster.features.batch.on_head.progress import Progress
from vllm_cluster.features.batch.replies import BegunAgain, JobState
from vllm_cluster.kernel.errors import HostError, Interrupted, Locked, UsageError, VclusterError
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.laptop import whoami
from vllm_cluster.kernel.text import age, count
from vllm_cluster.kernel.text import size as readable_size
from vllm_cluster.serving.endpoint.api import open_api

POLL_SECONDS = 1.0
# A program that is killed so often without an answer in between will not end.
RESTARTS = 5


class RefusedRow(HostError):
    """The head gives out what is not a row of this batch."""

    code = "refused-row"


@dataclass(frozen=True)
class Batch:
    """What is to be answered, and how; the model or the head may be away for `wait` seconds at a time."""

    inventory: Inventory
    files: BatchFiles
    fields: Mapping[str, object]
    concurrency: int | None
    seconds: float
    wait: float
    report_seconds: float


def answer_batch(
    wanted: Batch, emit: Emit, *, detach: bool = False, runtime: Runtime = SYSTEM
) -> tuple[BatchResult, bool]:
    """Have the head answer what is not answered yet, and fetch the answers; with whether it runs on.

    Raises:
        UsageError: the files do not fit together.
        PreflightFailed: no model is ready, or another one than that of the answers so far.
        HostError: the model was replaced, failed, or did not come back in time.
        VclusterError: another program has taken the answers away; the head keeps those that it has.
        Interrupted: a person ended this call; the batch runs on.
    """
    with _opened(wanted, emit, runtime) as run:
        try:
            run.bring(detach=detach)
        except KeyboardInterrupt:
            raise run.interrupted() from None
        return run.summary(), run.running


def cancel_batch(wanted: Batch, emit: Emit, *, runtime: Runtime = SYSTEM) -> BatchResult:
    """Stop the batch on the head, fetch what is answered and can be taken, and remove it there.

    Raises:
        UsageError: the files do not fit together.
        HostError: the head does not answer.
    """
    with _opened(wanted, emit, runtime) as run:
        run.cancel()
        return run.summary()


@contextmanager
def _opened(wanted: Batch, emit: Emit, runtime: Runtime) -> Iterator[_Run]:
    """The files of a batch, and the way to the head where it has something to do."""
    files = wanted.files
    try:
        with ExitStack() as stack:
            _ensure_apart(files)
            work = Work(files, wanted.fields, stack, _reading(emit, runtime))
            job = HeadJob(wanted.inventory, work.key, emit, wanted.wait, runtime)
            yield _Run(wanted, work, job=job, stack=stack, emit=emit, runtime=runtime)
    except InUse as error:
        raise Locked(error.message, again=()) from None
    except Displaced as error:
        raise VclusterError(f"{error.message}; the same command fetches them again", again=()) from None
    except BatchProblem as error:
        kind: Callable[..., VclusterError] = UsageError if error.usage else VclusterError
        raise kind(error.message, hint=error.hint or None) from None


def _reading(emit: Emit, runtime: Runtime) -> Callable[[Path, int], None]:
    """Report what is read, where that takes long."""
    due = runtime.after(POLL_SECONDS)

    def shown(path: Path, number: int) -> None:
        nonlocal due
        if not due.left():
            due = runtime.after(POLL_SECONDS)
            emit(Event("progress", f"reading {path}: {count(number, 'line')}"))

    return shown


def _ensure_apart(files: BatchFiles) -> None:
    for path in (files.output, files.errors):
        if path.exists() and path.samefile(files.source):
            raise UsageError(f"{path} is the input", hint="name another output with -o")


class _Run:
    """One call: the output here is brought to what is on the head, from the first row on."""

    def __init__(
        self, wanted: Batch, work: Work, *, job: HeadJob, stack: ExitStack, emit: Emit, runtime: Runtime
    ) -> None:
        self._wanted, self._work, self._job, self._stack = wanted, work, job, stack
        self._emit, self._runtime = emit, runtime
        # How far the rows there are fetched, and what follows of a row.
        self._at, self._rows, self._rest = 0, 0, bytearray()
        self._note = ""
        self._progress: Progress | None = None
        # Whether what is there is of this call, which has removed what was there before or found nothing.
        self._open = self._own = self.running = False

    def bring(self, *, detach: bool) -> None:
        """Bring all here, or what there is: of what another call has begun again, too, from its first row on."""
        for left in reversed(range(RESTARTS)):
            try:
                while self.begin() and not (detach and self.running):
                    self.follow()
                return
            except BegunAgain as error:
                if not left:
                    raise
                self._emit(Event("note", f"{error.message}; this one continues with what is there now"))
                self._forget()
                self._own = False

    def begin(self) -> bool:
        """Start what is left; whether there is anything to follow."""
        if self._work.left and not self._open:
            self._open_all()
        if not self._work.left:
            self._finish()
            return False
        state = self.fetch()
        self.running = state.running
        if state.running or state.phase == "done":
            return True
        # One that began before waits there for the model, which may be starting with the head's container.
        if not state.sent:
            self._send()
            self._own = True
        self._start()
        self.running = True
        return True

    def _open_all(self) -> None:
        """Open the way to it; what an input that was shorter began is stopped, and brought here first."""
        self._stack.enter_context(self._job)
        self._open = True
        wanted, found = self._wanted, self._job.ask("batches", read_known)
        due = self._runtime.after(wanted.wait)
        for key in earlier(found, wanted.files, wanted.fields, self._work.key):
            self._emit(
                Event("note", f"{wanted.files.source} has grown: what {self._job.host} answered of it comes first")
            )
            job = HeadJob(wanted.inventory, key, self._emit, due.left(), self._runtime)
            with ExitStack() as stack:
                stack.enter_context(job)
                _Run(wanted, self._work, job=job, stack=stack, emit=self._emit, runtime=self._runtime)._stop()

    def fetch(self) -> JobState:
        """Bring what is answered there here; the state after it."""
        while True:
            look = self._job.look(self._at + len(self._rest))
            self._progress = look.state.progress or self._progress
            if not look.piece:
                return look.state
            self._take(look.piece)

    def _take(self, piece: bytes) -> None:
        """Add the rows of a piece."""
        self._rest += piece
        *rows, rest = self._rest.split(b"\n")
        self._rest = bytearray(rest)
        try:
            if len(rest) > MAX_ROW:
                raise ValueError(f"a row is longer than {MAX_ROW} bytes")
            for row in rows:
                self._at, self._rows = self._at + len(row) + 1, self._rows + 1
                # A row that comes again is taken as well: without this a head could send it without end.
                if self._rows > self._work.total:
                    raise ValueError(f"there are more than the {count(self._work.total, 'request')} of the input")
                self._work.take(bytes(row) + b"\n")
        except ValueError as error:
            text = f"batch: a row of its answers is refused: {error}; the answers so far are kept"
            raise RefusedRow(self._job.host, text, again=("--cancel",)) from None

    def _send(self) -> None:
        wanted, due = self._wanted, self._runtime.after(POLL_SECONDS)
        with open_api(wanted.inventory, runtime=self._runtime) as api:
            api.ensure_fields(PATHS, wanted.fields)
            api.ensure_serves(self._work.models, wanted.files.output)

        def shown(sent: int) -> None:
            nonlocal due
            if not due.left():
                due = self._runtime.after(POLL_SECONDS)
                text = f"sending {count(self._work.left, 'request')}: {readable_size(sent)}"
                self._emit(Event("progress", text, self._job.host))

        files = wanted.files
        self._emit(Event("phase", f"sending {count(self._work.left, 'request')} to {self._job.host}"))
        asked = {
            "user": whoami(),
            "time": round(self._runtime.clock.time(), 3),
            "source": str(files.source.absolute()),
            "output": str(files.output.absolute()),
        }
        self._job.send(asked, self._work.lines(), shown)

    def _start(self) -> None:
        self._rest.clear()  # a row that a kill has torn is cut off there
        self._job.start(
            {
                "fields": dict(self._wanted.fields),
                "concurrency": self._wanted.concurrency,
                "seconds": self._wanted.seconds,
                "wait": self._wanted.wait,
                "models": sorted(self._work.models),
            }
        )

    def follow(self) -> None:
        """Show how far it is until it has ended; it is then removed there."""
        killed, before = 0, self._at
        self._emit(Event("phase", f"answering on {self._job.host}"))
        shown = 0.0
        while (state := self.fetch()).phase != "done" or state.running:
            if state.running:
                if self._runtime.clock.monotonic() - shown >= self._wanted.report_seconds:
                    shown = self._runtime.clock.monotonic()
                    self._show(state)
                self._runtime.clock.sleep(POLL_SECONDS)
                continue
            self._ensure_restartable(state)
            killed, before = (killed + 1, before) if self._at == before else (0, self._at)
            if killed > RESTARTS:
                raise HostError(
                    self._job.host, f"batch: its program was killed {killed} times without an answer", again=()
                )
            self._emit(Event("note", f"the batch was killed on {self._job.host}; starting it again"))
            self._start()
        if state.progress:
            # The last line stays: how far it came, and not how far it was when it was shown last.
            self._show(replace(state, progress=replace(state.progress, in_flight=0, seconds_left=None)))
        self._remove()
        # What another call has sent may lack requests; with that removed, one that is done again would be so each time.
        own, self._own = self._own, True
        if own and self._work.left:
            text = f"batch: it is done there, and {count(self._work.left, 'request')} came back without a row"
            raise HostError(self._job.host, text, again=())

    def _ensure_restartable(self, state: JobState) -> None:
        text = ""
        if state.phase == "failed":
            text = state.error
        elif state.phase == "stopped" or not state.sent:
            text = "another call stopped it"
        if text:
            raise HostError(self._job.host, f"batch: {text}; the answers so far are kept", hint="vcluster status")

    def _show(self, state: JobState) -> None:
        if state.note != self._note:
            self._note = state.note
            text = f"waiting for the model: {state.note}" if state.note else "the model answers again"
            self._emit(Event("note", text, data={"code": "waiting"} if state.note else {}))
        if state.progress:
            now, work = state.progress, self._work
            self._emit(progress_event(replace(now, total=work.total, answered=work.answered, failed=work.failed)))

    def cancel(self) -> None:
        """Stop it, and fetch what is answered and can be taken."""
        self._work.keep_reasons()
        self._open_all()
        self._stop()

    def _stop(self) -> None:
        self._job.act("stop")
        try:
            self.fetch()
        except RefusedRow as error:  # nothing could take it, and it would be there for good
            self._emit(Event("note", f"{error.message}; the rest is removed"))
        self._remove()

    def _finish(self) -> None:
        if why := self._work.finish():
            text = f"{self._wanted.files.output} keeps the order in which the answers came: {why}"
            self._emit(Event("note", text))

    def _remove(self) -> None:
        self._finish()
        self._job.act("remove")
        self._forget()

    def _forget(self) -> None:
        """Have what is there looked at from its first row on."""
        self._at, self._rows, self.running = 0, 0, False
        self._rest.clear()
        self._job.forget()

    def summary(self) -> BatchResult:
        """Report what was done, and is there."""
        self._work.ensure_in_place()
        tokens = (self._progress.prompt_tokens, self._progress.completion_tokens) if self._progress else (0, 0)
        return self._work.summary(*tokens)

    def interrupted(self) -> Interrupted:
        """Report how far it was when a person ended this call."""
        found, output = self._work.summary(), self._wanted.files.output
        more = f"{self._job.host} answers the rest, and the same command fetches it"
        more = more if self.running else "the same command continues"
        done = f"{found.answered} of {count(found.total, 'request')} are answered in {output}"
        return Interrupted(f"Interrupted. {done}; {more}.", again=())


def progress_event(now: Progress) -> Event:
    """Report how far it is, for people and for programs."""
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
