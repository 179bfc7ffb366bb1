"""Keeps what is wanted served: waits for its GPUs, starts vLLM, and starts it again when that can help."""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_cluster.node.attempt import Attempt, Pace, Wanted, outdated, refusal
from vllm_cluster.node.process import end
from vllm_cluster.node.requests import Requests, write_whole

LOG_BYTES = 16 * 1024 * 1024
Nodes = Sequence[Mapping[str, Any]]


def against(planned: Mapping[str, int], nodes: Iterable[Mapping[str, Any]]) -> tuple[float, list[str]]:
    """How many planned GPUs Ray has, and what is not as planned. Ghosts at one address add up, and so are wrong."""
    alive: dict[str, float] = {}
    for node in nodes:
        if node["alive"]:
            alive[node["address"]] = alive.get(node["address"], 0) + node["gpus"]
    wrong = [f"{address} is missing" for address in planned if address not in alive]
    wrong += [f"{address} is not of this cluster" for address in alive if address not in planned]
    for address, count in planned.items():
        if address in alive and alive[address] != count:
            wrong.append(f"{address} has {alive[address]:g} GPUs instead of {count}")
    return sum(count for address, count in alive.items() if address in planned), wrong


@dataclass
class Course:
    """What has become of one wish so far."""

    wanted: Wanted
    phase: str = "waiting"
    detail: str = ""
    since: float = 0.0
    have: float = 0.0
    attempts: int = 0
    failures: int = 0  # in a row
    losses: int = 0
    again_at: float = 0.0
    judge_until: float | None = None
    once_ready: bool = False
    first_failure: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None
    ready_at: float | None = None
    seconds_to_ready: float | None = None

    def turn(self, phase: str, detail: str = "") -> None:
        """Be in a phase; its beginning is kept while only the detail changes."""
        if phase != self.phase or not self.since:
            self.since = round(time.time(), 3)
        self.phase, self.detail = phase, detail

    def fail(self, failure: dict[str, Any]) -> None:
        """Remember how an attempt ended; the first one is the one that explains."""
        self.failure, self.first_failure = failure, self.first_failure or failure
        self.failures += 1

    def wait(self, pace: Pace) -> None:
        """Be due again later, each time twice as late."""
        pause = min(pace.serve_backoff_most, pace.serve_backoff * 2.0 ** min(self.failures - 1, 16))
        self.again_at = time.monotonic() + pause
        self.turn("backoff", f"starts again {pause:g} s after: {self.failure['what'] if self.failure else ''}")

    def memory(self) -> dict[str, Any]:
        """What must outlive the container."""
        kept = {"once_ready": self.once_ready, "failed": self.phase == "failed"}
        failures = {"first_failure": self.first_failure, "failure": self.failure}
        return {"v": 1, "generation": self.wanted.generation, **kept, **failures}


class Serving:
    """The wish, its course and, while vLLM runs, the attempt."""

    def __init__(
        self, state: Path, pace: Pace, hurry: threading.Event, publish: Callable[[], None], reap: Callable[[], None]
    ) -> None:
        self.course: Course | None = None
        self.attempt: Attempt | None = None
        self.error: str | None = None
        self._heard: str | None = None
        self._requests = Requests(state)
        self._members: dict[str, int] = {}
        self._state, self._pace, self._hurry, self._publish, self._reap = state, pace, hurry, publish, reap
        self._log = logging.handlers.RotatingFileHandler(
            state / "serve.log", maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8", delay=True
        )
        here = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
        self._environment = {**os.environ, "PYTHONPATH": path}

    def tick(self, nodes: Nodes | None) -> None:
        """Look at the wish, at Ray's nodes (None when Ray does not answer) and at vLLM, and do what is due."""
        self._hear()
        if self.course is None:
            return
        self._members = self._read_members()
        self.course.have, wrong = against(self._planned, nodes or ())
        if nodes is None:
            wrong = ["Ray does not answer yet"]
        if self.attempt:
            self._follow(self.course, self.attempt, nodes)
        elif self.course.phase in ("waiting", "backoff"):
            self._consider(self.course, nodes or (), wrong)
        if self.course.phase == "failed" and self._requests.fail(self.course.failure):
            self._take(self._requests.served, fresh=True)

    def ray_ended(self, why: str) -> None:
        """End vLLM, whose ranks have gone with Ray."""
        if self.course and self.attempt:
            self._ended(self.course, self.attempt, why, lost=True)

    def close(self) -> None:
        """End vLLM because this program ends; the wish stays."""
        if self.course and self.attempt:
            self._stop(self.course, self.attempt, "the node stops")

    def status(self) -> dict[str, Any] | None:
        """What there is to tell; None when nothing is wanted."""
        course = self.course
        if course is None:
            return None
        names = ("phase", "detail", "since", "first_failure", "failure", "ready_at", "seconds_to_ready")
        return {
            "generation": course.wanted.generation,
            "model": course.wanted.model,
            "name": course.wanted.name,
            "host": course.wanted.host,
            "port": course.wanted.port,
            **{name: getattr(course, name) for name in names},
            "attempt": course.attempts,
            "progress": self.attempt.progress if self.attempt else None,
            "gpus": [course.have, sum(self._planned.values())],
            **self._requests.status(),
        }

    @property
    def _planned(self) -> dict[str, int]:
        """The GPUs by address that must be there; an earlier version wrote them into the request alone."""
        return self._members or (self.course.wanted.nodes if self.course else {})

    def _read_members(self) -> dict[str, int]:
        """The GPUs by address of the cluster's members: hosts join and leave while a model is served."""
        try:
            rows = json.loads((self._state / "cluster.json").read_text())["members"]
            return {str(row["address"]): int(row["gpus"]) for row in rows if not row["leaving"]}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return self._members  # perhaps half written: what was read before holds

    def _hear(self) -> None:
        # Read whole each time: its time stamp comes from the sender's archive, and may not differ from the last one's.
        try:
            path = self._state / "wanted.json"
            text = path.read_text() if path.exists() else '{"v": 1, "serve": null}'
            if text == self._heard:
                return
            Wanted.read(text)
            request = json.loads(text)
            if path.exists() and outdated(self._state, request, write_whole):
                return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            # Perhaps half written: what was wanted before holds, and the next look decides.
            self.error = f"wanted.json cannot be read: {error!r}"
            return
        self._heard, self.error = text, None
        fresh = self._requests.accept(request)
        self._take(self._requests.served, fresh=fresh)

    def _take(self, serve: dict[str, Any] | None, *, fresh: bool) -> None:
        """Serve this from now on. The same again changes nothing, unless it had failed and was asked for afresh."""
        wanted = Wanted.read(json.dumps({"v": 1, "serve": serve}))
        same = self.course and wanted and wanted.generation == self.course.wanted.generation
        if fresh and not (same and self.course and self.course.phase != "failed"):
            (self._state / "serve.json").unlink(missing_ok=True)
        if self.course and (not same or (fresh and self.course.phase == "failed")):
            if self.attempt:
                self._stop(self.course, self.attempt, "something else is wanted")
            self.course = None
        if wanted and self.course is None:
            self.course = self._remember(Course(wanted))
            self._save(self.course)

    def _remember(self, course: Course) -> Course:
        """What a container before this one has learned about the same wish."""
        course.turn("waiting")
        try:
            memory = json.loads((self._state / "serve.json").read_text())
            if memory["generation"] == course.wanted.generation:
                course.once_ready, course.first_failure = memory["once_ready"], memory["first_failure"]
                course.failure = memory["failure"]
                if memory["failed"]:
                    course.turn("failed", course.failure["what"] if course.failure else "")
        except (OSError, ValueError, KeyError, TypeError):
            pass  # a first start, or a file that the disk has lost: begin anew
        return course

    def _save(self, course: Course) -> None:
        write_whole(self._state / "serve.json", course.memory())

    def _consider(self, course: Course, nodes: Nodes, wrong: list[str]) -> None:
        """Start vLLM when it is due and every GPU is there, and nothing else is."""
        now = time.monotonic()
        if course.judge_until is not None:
            if wrong:
                course.judge_until = None
                self._lost(course)
            elif now >= course.judge_until:
                course.judge_until = None
                course.turn("failed", course.failure["what"] if course.failure else "")
                self._save(course)
            return
        if now < course.again_at:
            return
        wanted = course.wanted
        if wrong:
            course.turn("waiting", f"GPUs {course.have:g}/{sum(self._planned.values())}: {'; '.join(wrong)}")
        elif refusal(wanted.host, wanted.port) is None:
            # Somebody else's server would answer our health check.
            what = f"port {wanted.port} of {wanted.host} is taken by another program"
            course.fail({"at": round(time.time(), 3), "what": what, "lines": []})
            self._decide(course, lost=False, judge=False)
        else:
            course.attempts += 1
            course.ready_at = course.seconds_to_ready = None
            members = {node["address"]: node["id"] for node in nodes if node["alive"]}
            self.attempt = Attempt(wanted, members, self._environment, self._log, self._pace)
            course.turn("starting")

    def _follow(self, course: Course, attempt: Attempt, nodes: Nodes | None) -> None:
        code = attempt.child.code()
        living = {node["id"] for node in nodes or () if node["alive"]}
        # By id: a node that died and came back between two looks has the address, but not the ranks.
        gone = [] if nodes is None else [place for place, name in attempt.members.items() if name not in living]
        what = [f"vLLM ended with exit code {code}"] if code is not None else []
        what += [f"Ray has lost {', '.join(gone)}"] if gone else []
        what += [attempt.verdict] if attempt.verdict else []
        if what:
            self._ended(course, attempt, "; ".join(what), lost=bool(gone))
            return
        if attempt.stage[0] == "ready" and course.phase != "ready":
            course.once_ready, course.failures, course.losses = True, 0, 0
            course.ready_at = round(time.time(), 3)
            course.seconds_to_ready = round(time.time() - attempt.began_at, 3)
            self._save(course)
            self._requests.ready(course.seconds_to_ready)
        course.turn(*attempt.stage)

    def _ended(self, course: Course, attempt: Attempt, what: str, *, lost: bool) -> None:
        self._stop(course, attempt, what)
        course.fail(attempt.failure(what))
        self._decide(course, lost=lost, judge=attempt.maybe_lost)

    def _decide(self, course: Course, *, lost: bool, judge: bool) -> None:
        """Whether to try again: always when it once was ready, else only when a node was lost."""
        if course.once_ready:
            course.wait(self._pace)
        elif lost:
            self._lost(course)
        elif judge:
            course.judge_until = time.monotonic() + self._pace.notice_loss
            course.turn("backoff", f"was a node lost? {course.failure['what'] if course.failure else ''}")
        else:
            course.turn("failed", course.failure["what"] if course.failure else "")
        self._save(course)

    def _lost(self, course: Course) -> None:
        course.losses += 1
        if course.losses > self._pace.loss_retries:
            course.turn("failed", f"nodes were lost {course.losses} times before it was ready")
        else:
            course.wait(self._pace)
        self._save(course)

    def _stop(self, course: Course, attempt: Attempt, why: str) -> None:
        """End vLLM and all that it started; what it shares in memory is freed by a process of its that ends last."""
        attempt.over.set()
        course.turn("stopping", why)
        self._publish()
        pace, hurry = self._pace, self._hurry
        end(attempt.child.alive, lambda: pace.serve_stop_hurry if hurry.is_set() else pace.serve_stop, self._reap)
        self.attempt = None
