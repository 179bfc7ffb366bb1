"""Keeps what is wanted served: waits for its GPUs, starts vLLM, and starts it again when that can help."""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_cluster.remote.node.attempt import Attempt, connect_error
from vllm_cluster.remote.node.files import write_whole
from vllm_cluster.remote.node.idle_gpus import IdleGpus
from vllm_cluster.remote.node.movement import span
from vllm_cluster.remote.node.process import Child, end
from vllm_cluster.remote.node.serve_request import Inbox, Requests
from vllm_cluster.remote.node.timing import Timing, boot_seconds
from vllm_cluster.wire.order import Placement


def idle_gpus(planned: Mapping[str, int], ranks: Mapping[str, int]) -> dict[str, int]:
    """The planned GPUs that no rank takes, where it is known which do."""
    left = {address: count - ranks.get(address, 0) for address, count in planned.items()} if ranks else {}
    return {address: count for address, count in left.items() if count > 0}


def compare_gpus(
    planned: Mapping[str, int], nodes: Iterable[Mapping[str, Any]], ranks: Mapping[str, int], names: Mapping[str, str]
) -> tuple[float, list[str]]:
    """How many planned GPUs Ray has, and what is not as planned. Ghosts at one address add up, and so are wrong.

    A host without ranks may be away: the model does not need it.
    """
    alive: dict[str, float] = {}
    for node in nodes:
        if node["alive"]:
            alive[node["address"]] = alive.get(node["address"], 0) + node["gpus"]
    needed = dict.fromkeys([*ranks, *(() if ranks else planned)])
    wrong = [f"{names.get(address, address)} is missing" for address in needed if address not in alive]
    wrong += [f"{address} is not of this cluster" for address in alive if address not in planned]
    for address, count in planned.items():
        if address in alive and alive[address] != count:
            wrong.append(f"{names.get(address, address)} has {alive[address]:g} GPUs instead of {count}")
    return sum(count for address, count in alive.items() if address in planned), wrong


@dataclass
class ServeState:
    """What has become of one request so far."""

    wanted: Placement
    phase: str = "waiting"
    detail: str = ""
    since: float = 0.0  # the moment, for people
    phase_began: float = 0.0  # the same by the boot clock
    have: float = 0.0
    attempts: int = 0
    failures: int = 0  # in a row
    starts: list[float] = field(default_factory=list)  # when vLLM was started, within the time of the budget
    waited: list[list[Any]] = field(default_factory=list)  # for its GPUs, before this start
    again_at: float = 0.0
    judge_until: float | None = None
    once_ready: bool = False
    first_failure: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None
    ready_at: float | None = None
    seconds_to_ready: float | None = None

    def set_phase(self, phase: str, detail: str = "") -> None:
        """Be in a phase; its beginning is kept while only the detail changes."""
        if phase != self.phase or not self.since:
            self.since, self.phase_began = round(time.time(), 3), boot_seconds()
        self.phase, self.detail = phase, detail

    @property
    def what(self) -> str:
        """How the last attempt ended."""
        return str(self.failure["summary"]) if self.failure else ""

    def fail(self, failure: dict[str, Any]) -> None:
        """Remember how an attempt ended; the first one is the one that explains."""
        self.failure, self.first_failure = failure, self.first_failure or failure
        self.failures += 1

    def wait(self, pace: Timing) -> None:
        """Be due again later, each time twice as late; or never, where it was started too often."""
        now = time.time()
        # A clock that was put forward and back leaves starts in the future: they count, too.
        self.starts = [start for start in self.starts if now - start < pace.restarts_within]
        if len(self.starts) > pace.restarts:
            self.set_phase(
                "failed", f"started {len(self.starts)} times within {span(pace.restarts_within)}: no further attempts"
            )
            return
        pause = min(pace.serve_backoff_most, pace.serve_backoff * 2.0 ** min(self.failures - 1, 16))
        self.again_at = time.monotonic() + pause
        self.set_phase("backoff", f"restarting in {pause:g} s: {self.what}")

    def memory(self) -> dict[str, Any]:
        """What must outlive the container."""
        kept = {"once_ready": self.once_ready, "failed": self.phase == "failed", "detail": self.detail}
        failures = {"first_failure": self.first_failure, "failure": self.failure, "starts": self.starts}
        return {"v": 1, "generation": self.wanted.generation, **kept, **failures}

    def remember(self, memory: Mapping[str, Any]) -> None:
        """Take over what a container before this one has learned about the same request.

        Raises:
            KeyError, TypeError: it is not what `memory` makes.
        """
        if memory["generation"] != self.wanted.generation:
            return
        self.once_ready, self.first_failure = memory["once_ready"], memory["first_failure"]
        self.failure, self.starts = memory["failure"], list(memory.get("starts", ()))
        if memory["failed"]:
            self.set_phase("failed", memory.get("detail") or self.what)


LOG_BYTES = 16 * 1024 * 1024
Nodes = Sequence[Mapping[str, Any]]


class ServeController:
    """The request, its course and, while vLLM runs, the attempt."""

    def __init__(
        self, state: Path, pace: Timing, hurry: threading.Event, publish: Callable[[], None], reap: Callable[[], None]
    ) -> None:
        self.course: ServeState | None = None
        self.attempt: Attempt | None = None
        self._inbox, self._requests = Inbox(state), Requests(state)
        self._members: dict[str, int] = {}
        self._names: dict[str, str] = {}  # of the members, by address
        self._left: Callable[[], list[int]] = list
        self._state, self._pace, self._hurry, self._publish, self._reap = state, pace, hurry, publish, reap
        self._log = logging.handlers.RotatingFileHandler(
            state / "serve.log", maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8", delay=True
        )
        # The module of our middleware lies beside the package, where vLLM imports it from.
        here = str(Path(__file__).resolve().parents[__name__.count(".")])
        path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
        self._environment = {**os.environ, "PYTHONPATH": path}
        self._idle = IdleGpus(self._environment, reap)

    @property
    def error(self) -> str | None:
        """What is wrong with the file of the request."""
        return self._inbox.error

    def tick(self, nodes: Nodes | None) -> None:
        """Look at the request, at Ray's nodes (None when Ray does not answer) and at vLLM, and do what is due."""
        self._read_request()
        if self.course is None:
            return
        self._read_members()
        self.course.have, wrong = compare_gpus(
            self._planned, nodes or (), self.course.wanted.replica.ranks, self._names
        )
        if nodes is None:
            wrong = ["Ray does not answer yet"]
        if self.attempt:
            self._follow(self.course, self.attempt, nodes)
        elif self.course.phase in ("waiting", "backoff"):
            self._consider(self.course, nodes or (), wrong)
        if self.course.phase == "failed" and self._requests.fail(self.course.failure):
            self._take(self._requests.served, fresh=True)

    @property
    def children(self) -> tuple[Child | None, ...]:
        """The processes that this started and waits for itself."""
        return self.attempt.child if self.attempt else None, self._idle.child

    @property
    def settled(self) -> bool:
        """Whether no start of a model is under way, which needs the processors itself."""
        return self.course is None or self.course.phase in ("ready", "failed")

    def group_ended(self, why: str) -> None:
        """End vLLM, whose ranks have gone with Ray."""
        if self.course and self.attempt:
            self._ended(self.course, self.attempt, why, lost=True)

    def close(self) -> None:
        """End vLLM because this program ends; the request stays."""
        if self.course and self.attempt:
            self.attempt.stop_in_order()
            self._stop(self.course, self.attempt, "the node stops")

    def status(self) -> dict[str, Any] | None:
        """The status to write; None when nothing is wanted."""
        course, attempt = self.course, self.attempt
        if course is None:
            return None
        names = ("phase", "detail", "since", "first_failure", "failure", "ready_at", "seconds_to_ready")
        return {
            "generation": course.wanted.generation,
            "model": course.wanted.deployment.model,
            "name": course.wanted.deployment.name,
            "host": course.wanted.replica.host,
            "port": course.wanted.replica.port,
            **{name: getattr(course, name) for name in names},
            "attempt": course.attempts,
            "progress": attempt.phases.progress if attempt else None,
            "phases": self._phases(course),
            "gpus": [course.have, sum(self._planned.values())],
            "ranks": course.wanted.replica.ranks,
            **self._requests.status(),
        }

    def _phases(self, course: ServeState) -> list[list[Any]]:
        """Those of this start that are over; while a start is stopped, the request may already be the next one."""
        if self.attempt is None or course.phase == "stopping":
            return []
        return [*course.waited, *self.attempt.phases.timeline()]

    def beat(self) -> dict[str, Any]:
        """What changes too often for each change to be written; it is written with the next beat."""
        attempt = self.attempt
        return {"last_line": attempt.last_line, "token_age_seconds": attempt.token_age()} if attempt else {}

    @property
    def _planned(self) -> dict[str, int]:
        """The GPUs by address that must be there; those of the order, where the record of members cannot be read."""
        return self._members or (self.course.wanted.replica.ranks if self.course else {})

    def _read_members(self) -> None:
        """Read the names and GPUs of the cluster's members: hosts join and leave while a model is served."""
        try:
            rows = json.loads((self._state / "cluster.json").read_text())["members"]
            members = {str(row["address"]): int(row["gpus"]) for row in rows if not row["leaving"]}
            self._members, self._names = members, {str(row["address"]): str(row["name"]) for row in rows}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return  # perhaps half written, or about to be: what was read before holds

    def _read_request(self) -> None:
        """Take what is asked for; where a power cut broke that file, what was asked for before this program began."""
        if (order := self._inbox.news()) is not None:
            fresh = self._requests.accept(order)
            self._take(self._requests.served, fresh=fresh)
        elif self._inbox.error and self.course is None and self._requests.served:
            self._take(self._requests.served, fresh=False)

    def _take(self, wanted: Placement | None, *, fresh: bool) -> None:
        """Serve this from now on. The same again changes nothing, unless it had failed and was asked for afresh."""
        same = self.course and wanted and wanted.generation == self.course.wanted.generation
        if fresh and not (same and self.course and self.course.phase != "failed"):
            (self._state / "serve.json").unlink(missing_ok=True)
        if self.course and (not same or (fresh and self.course.phase == "failed")):
            if self.attempt:
                self.attempt.stop_in_order()
                self._stop(self.course, self.attempt, "superseded by a new request")
            self._idle.release()
            self.course = None
        if wanted and self.course is None:
            self.course = self._remember(ServeState(wanted))
            if self.course.once_ready and self.course.phase != "failed":
                self._requests.restarted("the head's container started again")
            self._save(self.course)
        elif wanted and self.course:
            self.course.wanted = wanted  # the same on other hosts: its next start goes there

    def _remember(self, course: ServeState) -> ServeState:
        """What a container before this one has learned about the same request."""
        course.set_phase("waiting")
        # A first start has no such file, and a disk may have lost it.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            course.remember(json.loads((self._state / "serve.json").read_text()))
        return course

    def _save(self, course: ServeState) -> None:
        write_whole(self._state / "serve.json", course.memory(), sync=True)

    def _consider(self, course: ServeState, nodes: Nodes, wrong: list[str]) -> None:
        """Start vLLM when it is due and every GPU is there and free, and nothing else is."""
        now = time.monotonic()
        if course.judge_until is not None:
            self._judge(course, wrong, late=now >= course.judge_until)
            return
        if now < course.again_at:
            return
        if not wrong and self._idle.child is None:
            wrong = self._held(course, nodes)
        wanted = course.wanted.replica
        if wrong:
            course.set_phase("waiting", f"GPUs {course.have:g}/{sum(self._planned.values())}: {'; '.join(wrong)}")
        elif unheld := self._idle.hold(idle_gpus(self._planned, wanted.ranks)):
            course.set_phase("waiting", unheld)
        elif connect_error(wanted.host, wanted.port) is None:
            # Another program's server would answer our health check.
            what = f"port {wanted.port} of {wanted.host} is taken by another program"
            course.fail({"time": round(time.time(), 3), "summary": what, "lines": []})
            self._decide(course, lost=False, judge=False)
        else:
            self._start(course, nodes)

    def _held(self, course: ServeState, nodes: Nodes) -> list[str]:
        """What an attempt before has left: processes that have not ended, GPUs that Ray has not got back."""
        if not course.attempts:
            return []  # GPUs that others hold from the start are Ray's to wait for
        left = self._left()
        held = [f"process {', '.join(map(str, left))} of the last start has not ended"] if left else []
        taken = {n["address"]: n["gpus"] - n.get("free", n["gpus"]) for n in nodes if n["alive"]}
        return held + [f"{count:g} GPUs of {address} are not free yet" for address, count in taken.items() if count > 0]

    def _start(self, course: ServeState, nodes: Nodes) -> None:
        course.attempts += 1
        waited = boot_seconds() - course.phase_began if course.phase == "waiting" else 0.0
        course.waited = [["waiting", round(waited, 1)]] if waited >= 1 else []
        course.ready_at = course.seconds_to_ready = None
        course.starts.append(round(time.time(), 3))
        self._save(course)
        ranks = course.wanted.replica.ranks
        members = {n["address"]: n["id"] for n in nodes if n["alive"] and (not ranks or n["address"] in ranks)}
        self.attempt = Attempt(course.wanted, members, self._environment, self._log, self._pace)
        self._left = self.attempt.child.alive
        course.set_phase(*self.attempt.stage)

    def _follow(self, course: ServeState, attempt: Attempt, nodes: Nodes | None) -> None:
        code = attempt.child.code()
        living = {node["id"] for node in nodes or () if node["alive"]}
        # By id: a node that died and came back between two looks has the address, but not the ranks.
        gone = [] if nodes is None else [place for place, name in attempt.members.items() if name not in living]
        what = [f"vLLM ended with exit code {code}"] if code is not None else []
        what += [f"Ray has lost {', '.join(gone)}"] if gone else []
        what += [attempt.verdict] if attempt.verdict else []
        # Until its ranks are placed, they could go where they shall not.
        unheld = self._idle.lost and course.ready_at is None
        what += ["the GPUs that stay idle are no longer held in Ray"] if unheld else []
        if what:
            self._ended(course, attempt, "; ".join(what), lost=bool(gone) or unheld)
            return
        phase, detail = attempt.stage
        started = phase == "ready" and course.ready_at is None
        if started:
            course.once_ready, course.failures = True, 0
            course.ready_at = round(time.time(), 3)
            course.seconds_to_ready = round(boot_seconds() - attempt.began, 3)
            self._save(course)
        if phase == "ready":
            # At each look: another request may ask for what runs already.
            self._requests.ready(course.seconds_to_ready if started else None)
        course.set_phase(phase, detail)

    def _ended(self, course: ServeState, attempt: Attempt, what: str, *, lost: bool) -> None:
        self._stop(course, attempt, what)
        course.fail(attempt.failure(what))
        self._decide(course, lost=lost, judge=attempt.maybe_lost)

    def _decide(self, course: ServeState, *, lost: bool, judge: bool) -> None:
        """Whether to try again, within the budget: when it once was ready, or when a node was lost."""
        if course.once_ready or lost:
            self._again(course)
        elif judge:
            course.judge_until = time.monotonic() + self._pace.notice_loss
            course.set_phase("backoff", f"was a node lost? {course.what}")
        else:
            course.set_phase("failed", course.what)
        self._save(course)

    def _again(self, course: ServeState) -> None:
        course.wait(self._pace)
        final = course.phase == "failed"
        self._requests.restarted(f"{course.what}; {course.detail}" if final else course.what, final=final)

    def _judge(self, course: ServeState, wrong: list[str], *, late: bool) -> None:
        """Whether a node was lost, which Ray notices seconds after vLLM has ended of it."""
        if wrong or late:
            course.judge_until = None
            if wrong:
                self._again(course)
            else:
                course.set_phase("failed", course.what)
            self._save(course)

    def _stop(self, course: ServeState, attempt: Attempt, why: str) -> None:
        """End vLLM and all that it started; what it shares in memory is freed by a process of its that ends last."""
        attempt.over.set()
        course.set_phase("stopping", why)
        self._publish()
        pace, hurry = self._pace, self._hurry
        end(attempt.child.alive, lambda: pace.serve_stop_hurry if hurry.is_set() else pace.serve_stop, self._reap)
        self._idle.release()
        self.attempt = None
