"""One run of vLLM on this node: its lines, and where it answers requests how far it is, and whether it does."""

from __future__ import annotations

import logging
import re
import socket
import threading
import time

from vllm_cluster.serving.node.api import Api, Question
from vllm_cluster.serving.node.engine_watch import BAD, EngineWatch, short_steps
from vllm_cluster.serving.node.key_check import KEY_FILE
from vllm_cluster.serving.node.proc import StoppedProcesses, compiler_runs
from vllm_cluster.serving.node.process import Child
from vllm_cluster.serving.node.readiness import Readiness
from vllm_cluster.serving.node.stacks import write_stacks
from vllm_cluster.serving.node.start_movement import Movement, Phases, download_folder, vllm_processes
from vllm_cluster.serving.node.timing import Timing
from vllm_cluster.wire.parts import PartOrder, PartReport
from vllm_cluster.wire.status import Phase

# The first such line is the likeliest root cause; the excepted ones only report that something else has failed, or are
# the code in a traceback.
_CAUSE = re.compile(r"(?:^|[\s.\]])(?:[A-Z]\w*(?:Error|Exception)|error): \S|died unexpectedly")
_CONSEQUENCE = re.compile(r"EngineDeadError|See root cause above|See stack trace|WARNING|\braise [A-Za-z]")
_MORE_OF_IT = re.compile(r"\s+(?!File )\S")
_CAUSE_LINES = 3
_WHO = re.compile(r"^(?:\([^)]*\) )*(?:ERROR \S+ \S+ \[\S+\] )?")
# A run with such a line may have lost a node, which Ray notices only seconds later.
_MAYBE_LOST = re.compile(r"\bdied\b|\bdead\b|unavailable|[Cc]onnection (?:reset|closed|refused)|[Tt]imed ?out")
STARTS = "vcluster starts vLLM"
STOPS = "vcluster stops vLLM"


def connect_error(address: str, port: int) -> OSError | None:
    """Why a port accepts no connection; None when it does."""
    try:
        socket.create_connection((address, port), 2.0).close()
    except OSError as error:
        return error
    return None


# Of a line in a report, which goes over the network.
_REPORTED = 1000


class Attempt:
    """One run of vLLM. Threads write `phases`, `last_line`, `verdict`; the loop reads."""

    def __init__(self, order: PartOrder, environment: dict[str, str], log: logging.Handler, pace: Timing) -> None:
        self.phases = Phases()
        self.last_line = ""
        self.verdict = ""
        self.maybe_lost = False
        self.over = threading.Event()
        self._ready: EngineWatch | None = None
        self._cause: list[str] = []
        self._cause_open = False
        self._stopped = StoppedProcesses(pace.frozen)
        self._looked = 0.0
        self._name, self._log, self._pace = order.name, log, pace
        part, self._argv = order.part, order.part.argv
        variables = {**environment, **part.env}
        folder = download_folder(order.model, part.argv, variables)
        self._downloads = folder is not None and variables.get("HF_HUB_OFFLINE", "0").lower() in ("", "0", "false")
        self._movement = Movement(lambda: vllm_processes(self.child.alive), folder, pace)
        # One log holds all attempts: a reader must know where the last one begins, also if vLLM prints nothing of it.
        self._mark(STARTS)
        # Replicas of one host print into one log.
        self.child = Child(f"vllm_{order.index}" if order.several else "vllm", part.argv, variables, self._see)
        if order.api:
            api = Api(*order.api, variables.get(KEY_FILE, ""))
            threading.Thread(target=self._watch, args=(api,), daemon=True).start()

    def report(self, id: str, left: tuple[int, ...], *, over: bool) -> PartReport:
        """Return how it does; with the likeliest cause of its end, and its last lines, once it is over."""
        phase, detail = self.stage
        if over:
            self.child.read_rest()
        return PartReport(
            id,
            code=self.child.code(),
            over=over,
            left=left,
            cause=" ".join(_WHO.sub("", line).strip() for line in self._cause)[:500],
            lines=tuple(line[:_REPORTED] for line in (*self._cause, *self.child.tail)) if over else (),
            maybe_lost=self.maybe_lost,
            phase=phase,
            detail=detail,
            verdict=self.verdict,
            progress=self.phases.progress,
            phases=self.phases.timeline(),
            last_line=self.last_line,
            token_age=self.token_age(),
        )

    def look_for_stopped(self) -> None:
        """See whether a process of it is stopped, which the engine waits for without end and /health does not show."""
        now = time.monotonic()
        if now - self._looked < self._pace.frozen / 10:
            return
        self._looked = now
        found = self._stopped.look(vllm_processes(self.child.alive))
        if found and not self.verdict:
            self.verdict = found

    def write_stacks(self) -> None:
        """Write into the log what its threads are doing, which is lost with them."""
        write_stacks(vllm_processes(self.child.alive), self._write)

    def mark_stop(self) -> None:
        """Write down that it ends because it shall: what its processes write from now on is not a failure."""
        self._mark(STOPS)

    def _mark(self, words: str) -> None:
        self._write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {words}")

    def _write(self, line: str) -> None:
        self._log.handle(logging.makeLogRecord({"msg": line}))

    @property
    def stage(self) -> tuple[Phase, str]:
        """The phase and its detail; a ready server that gives no token is hung."""
        if self.phases.phase == "ready" and self._ready and self._ready.hung:
            return "hung", self._ready.hung
        return self.phases.phase, self.phases.detail

    def token_age(self) -> float | None:
        """Seconds since the last token or answer; None before it was ready."""
        return round(time.monotonic() - self._ready.token, 1) if self._ready else None

    def _see(self, line: str) -> None:
        self._write(line)
        self.maybe_lost = self.maybe_lost or bool(_MAYBE_LOST.search(line))
        self._look_for_cause(line)
        self._movement.line(line)
        self._see_phase(line)

    def _look_for_cause(self, line: str) -> None:
        if not self._cause and _CAUSE.search(line) and not _CONSEQUENCE.search(line):
            self._cause, self._cause_open = [line], True
        elif self._cause_open and len(self._cause) < _CAUSE_LINES and _MORE_OF_IT.match(line):
            self._cause.append(line)
        else:
            self._cause_open = False

    def _see_phase(self, line: str) -> None:
        before = self.phases.progress
        self.phases.see(line)
        self.last_line = line.strip()[:500] or self.last_line
        if self.phases.progress != before:
            self._movement.moved()

    def _watch(self, api: Api) -> None:
        """Wait until it is ready, and ask from then on whether it still answers."""
        readiness = Readiness(api, self._name, self.phases, self._movement, self._pace)
        try:
            if readiness.await_health(self.over, downloads=self._downloads):
                question = readiness.prove()
                self._ready = self._engine_watch(api, question)
                self.phases.turn("ready")
                while not self.over.wait(self._pace.health):
                    self._ready.look()
        except BAD as error:
            why = str(error) or type(error).__name__
            self.verdict = why if self._ready else f"readiness probe failed: {why}"

    def _engine_watch(self, api: Api, question: Question) -> EngineWatch:
        def compiles() -> bool:
            return compiler_runs(vllm_processes(self.child.alive))

        short = "generate" in question.tasks and short_steps(self._argv)
        return EngineWatch(api, question, self._name, self._pace, steps_are_short=short, compiles=compiles)
