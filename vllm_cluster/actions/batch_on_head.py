"""Answer a file of requests on the head: it runs there without this machine, and is looked at and fetched from here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from vllm_cluster.actions.batch import interrupted, opened, progress_event
from vllm_cluster.actions.batches import batches_of, ensure_own_output
from vllm_cluster.actions.head_api import HeadApi
from vllm_cluster.batch.engine import Options
from vllm_cluster.batch.lines import options_checksum
from vllm_cluster.batch.progress import Progress
from vllm_cluster.batch.work import BatchFiles, BatchResult, Work
from vllm_cluster.errors import HostError
from vllm_cluster.events import Emit, Event
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.laptop import whoami
from vllm_cluster.run.head_job import HeadJob, unpacked
from vllm_cluster.run.runtime import SYSTEM, Runtime
from vllm_cluster.text import size as readable_size

POLL_SECONDS = 1.0
# A program that is killed so often without an answer in between will not end.
RESTARTS = 5
PIECE = 1 << 20
CONTINUES = "the same command continues"
INPUT, OUTPUT, ERRORS = "input.jsonl", "output.jsonl", "errors.jsonl"


@dataclass(frozen=True)
class HeadBatch:
    """What is to be answered, and how long the model or the head may be away."""

    inventory: Inventory
    files: BatchFiles
    options: Options
    wait: float

    @cached_property
    def source_digest(self) -> str:
        """The checksum of the input."""
        return digest(self.files.source)

    @property
    def key(self) -> str:
        """A name by content: the input, and what the options make of it."""
        options = options_checksum(self.options.fields)
        found = f"{self.source_digest} {self.options.copies} {options}"
        return hashlib.sha256(found.encode()).hexdigest()[:16]

    def asked(self, now: float) -> dict[str, Any]:
        """What the head keeps for those who look at all its batches."""
        return {
            "user": whoami(),
            "time": round(now, 3),
            "source": str(self.files.source.absolute()),
            "output": str(self.files.output.absolute()),
            "sha256": self.source_digest,
            "copies": self.options.copies,
            "fields": dict(self.options.fields),
        }


def batch_on_head(
    wanted: HeadBatch, emit: Emit, *, detach: bool = False, runtime: Runtime = SYSTEM
) -> tuple[BatchResult, bool]:
    """Have the head answer what is not answered yet, and fetch the answers; with whether it runs on.

    Raises:
        UsageError, PreflightFailed: as `batch`.
        HostError: the model was replaced, failed, or did not come back in time.
        Interrupted: a person ended this call; the batch runs on.
    """
    with opened(wanted.files, wanted.options) as work, _job(wanted, emit, runtime) as job:
        run = _HeadRun(wanted, work, job, emit, runtime)
        try:
            if not run.begin():
                return work.summary(), False
            return (work.summary(), True) if detach and run.running else (run.follow(), False)
        except KeyboardInterrupt:
            more = f"{job.host} answers the rest, and the same command fetches it" if run.running else CONTINUES
            raise interrupted(work, wanted.files, more) from None


def cancel(wanted: HeadBatch, emit: Emit, *, runtime: Runtime = SYSTEM) -> BatchResult:
    """Stop the batch on the head, fetch what is answered, and remove it there.

    Raises:
        UsageError: the files do not fit together.
        HostError: the head does not answer.
    """
    with opened(wanted.files, wanted.options) as work, _job(wanted, emit, runtime) as job:
        job.ask("stop")
        _HeadRun(wanted, work, job, emit, runtime).fetch()
        job.ask("remove")
        return work.summary()


def _job(wanted: HeadBatch, emit: Emit, runtime: Runtime) -> HeadJob:
    return HeadJob(wanted.inventory, wanted.key, emit, wanted.wait, runtime)


class _HeadRun:
    """One look at a batch on the head: the output here is brought to what is there."""

    def __init__(self, wanted: HeadBatch, work: Work, job: HeadJob, emit: Emit, runtime: Runtime) -> None:
        self._wanted, self._files, self._work = wanted, wanted.files, work
        self._job, self._emit, self._runtime = job, emit, runtime
        # How far the output there is known, what follows of a row, and whether the output here begins as it does.
        self._at, self._rest, self._same = 0, b"", False
        self._note = ""
        self.running = False

    def begin(self) -> bool:
        """Start it where it does not run, or has not ended; whether there is anything to follow."""
        now = self.fetch()
        self.running = bool(now["running"])
        if self.running or _phase(now) == "done":
            return True
        if not self._work.left:
            self._job.ask("remove")
            return False
        # One that began before waits there for the model, which may be starting with the head's container.
        if not now["input"]:
            asked = self._wanted.asked(self._runtime.clock.time())
            ensure_own_output(batches_of(self._job), asked, self._wanted.key)
            with HeadApi(self._wanted.inventory, self._emit, self._wanted.wait, self._runtime) as server:
                server.ensure_model(self._work.models, self._files.output)
            self._job.ask("asked", asked=asked)
            self._send(INPUT, self._files.source, resume=True)
        # What was answered from elsewhere is not asked there.
        if self._work.output.size and not (self._same and self._at == self._work.output.size):
            self._send(OUTPUT, self._files.output, resume=False)
            self._at, self._same = self._work.output.size, True
        self._start()
        self.running = True
        return True

    def fetch(self) -> dict[str, Any]:
        """Bring what is answered there here; the last reply."""
        work = self._work
        work.begin()
        if work.output.size:
            here = {"size": work.output.size, "sha256": digest(self._files.output, work.output.size)}
            self._same = bool(self._job.ask("same", **here)["same"])
            self._at = work.output.size if self._same else 0
        else:
            self._same = True
        while self._take(now := self._job.ask("look", **{"from": self._at + len(self._rest)})):
            pass
        return now

    def _take(self, now: Mapping[str, Any]) -> int:
        """Add the rows of a reply; how many bytes there were."""
        piece = unpacked(dict(now))
        *rows, self._rest = (self._rest + piece).split(b"\n")
        for row in rows:
            self._work.take(row + b"\n")
            self._at += len(row) + 1
        return len(piece)

    def _send(self, name: str, path: Path, *, resume: bool) -> None:
        total, due = path.stat().st_size, self._runtime.after(POLL_SECONDS)

        def shown(sent: int) -> None:
            nonlocal due
            if not due.left():
                due = self._runtime.after(POLL_SECONDS)
                self._emit(
                    Event(
                        "progress", f"sending {path}: {readable_size(sent)} of {readable_size(total)}", self._job.host
                    )
                )

        self._emit(Event("phase", f"sending {path} to {self._job.host}"))
        self._job.send(name, path, resume=resume, shown=shown)

    def _start(self) -> None:
        known = self._wanted.options
        self._rest = b""  # a row that a kill has torn is cut off there
        self._job.start(
            {
                "copies": known.copies,
                "fields": dict(known.fields),
                "concurrency": known.concurrency,
                "seconds": known.seconds,
                "wait": self._wanted.wait,
            }
        )

    def follow(self) -> BatchResult:
        """Show how far it is until it has ended; it is then removed there."""
        killed, before = 0, self._at
        self._emit(Event("phase", f"answering on {self._job.host}"))
        shown = 0.0
        while True:
            now = self._job.ask("look", **{"from": self._at + len(self._rest)})
            taken = self._take(now)
            if now["running"] or taken:
                if self._runtime.clock.monotonic() - shown >= self._wanted.options.report_seconds:
                    shown = self._runtime.clock.monotonic()
                    self._show(now["status"] or {})
                if not taken:
                    self._runtime.clock.sleep(POLL_SECONDS)
                continue
            if _phase(now) == "done":
                return self._finish(now["status"]["result"])
            self._ensure_restartable(now)
            killed, before = (killed + 1, before) if self._at == before else (0, self._at)
            if killed > RESTARTS:
                raise HostError(self._job.host, f"batch: its program was killed {killed} times without an answer")
            self._emit(Event("note", f"the batch was killed on {self._job.host}; starting it again"))
            self._start()

    def _ensure_restartable(self, now: Mapping[str, Any]) -> None:
        phase = _phase(now)
        if phase == "failed":
            why = now["status"].get("error")
            text = f"batch: {why}; the answers so far are kept"
            raise HostError(self._job.host, text, hint="vcluster status")
        if phase == "stopped":
            raise HostError(self._job.host, "batch: it was stopped; the answers so far are kept", again=())

    def _show(self, status: Mapping[str, Any]) -> None:
        note = str(status.get("note") or "")
        if note != self._note:
            self._note = note
            text = f"waiting for the model: {note}" if note else "the model answers again"
            self._emit(Event("note", text, data={"code": "waiting"} if note else {}))
        if status.get("progress"):
            with suppress(TypeError):
                self._emit(progress_event(Progress(**status["progress"])))

    def _finish(self, result: Mapping[str, Any]) -> BatchResult:
        """Fetch the reasons of what has no answer, and remove all there."""
        at, rest = 0, b""
        while piece := unpacked(self._job.ask("look", file=ERRORS, **{"from": at})):
            at += len(piece)
            *rows, rest = (rest + piece).split(b"\n")
            for row in rows:
                self._work.errors.append(row + b"\n")
        self._work.output.sync(self._runtime.clock.monotonic())
        self._job.ask("remove")
        here = self._work.summary()
        return replace(BatchResult(**result), total=here.total, answered=here.answered)


def _phase(now: Mapping[str, Any]) -> str:
    return str((now["status"] or {}).get("phase", ""))


def digest(path: Path, size: int = -1) -> str:
    """The checksum of a file, or of so many of its first bytes."""
    found, left = hashlib.sha256(), size if size >= 0 else path.stat().st_size
    with path.open("rb") as file:
        while left and (piece := file.read(min(left, PIECE))):
            found.update(piece)
            left -= len(piece)
    return found.hexdigest()
