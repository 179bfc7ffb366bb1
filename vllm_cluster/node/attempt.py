"""One run of vLLM: what is wanted, how far the log says it is, and what the API answers."""

from __future__ import annotations

import http.client
import json
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_cluster.node.process import Child, say

# What vLLM's log says about how far it is. A phase never goes back: ranks are not equally fast.
_PHASES = ("starting", "loading", "profiling")
_SHARDS = re.compile(r"Completed \| (\d+)/(\d+) \[")
_MARKERS = (
    (re.compile(r"Waiting for creating a placement group"), "starting", "waiting for Ray to give the GPUs"),
    (re.compile(r"Starting to load model"), "loading", "weights"),
    (_SHARDS, "loading", "shards {}/{}"),
    (re.compile(r"Loading weights took"), "loading", "weights loaded"),
    (re.compile(r"Dynamo bytecode|torch\.compile takes|Compiling a graph"), "profiling", "compiling"),
    (re.compile(r"Available KV cache memory|KV cache size"), "profiling", "KV cache"),
    (re.compile(r"Capturing CUDA graph"), "profiling", "CUDA graphs"),
)
# The first such line is the likeliest root cause; the excepted ones only say that something else has failed.
_CAUSE = re.compile(r"(?:^|[\s.\]])(?:[A-Z]\w*(?:Error|Exception)|error): \S|died unexpectedly")
_CONSEQUENCE = re.compile(r"EngineDeadError|See root cause above|See stack trace|WARNING")
_MORE_OF_IT = re.compile(r"\s+(?!File )\S")
_CAUSE_LINES = 3
_WHO = re.compile(r"^(?:\([^)]*\) )*(?:ERROR \S+ \S+ \[\S+\] )?")
# A run with such a line may have lost a node, which Ray notices only seconds later.
_MAYBE_LOST = re.compile(r"\bdied\b|\bdead\b|unavailable|[Cc]onnection (?:reset|closed|refused)|[Tt]imed ?out")
STARTS = "vcluster starts vLLM"
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (asked at loopback when it listens everywhere)


def refusal(address: str, port: int) -> OSError | None:
    """Why a port accepts no connection; None when it does."""
    try:
        socket.create_connection((address, port), 2.0).close()
    except OSError as error:
        return error
    return None


@dataclass(frozen=True)
class Pace:
    """How long things may take, in seconds; tests make it faster."""

    tick: float = 0.2
    ray_backoff: float = 1.0
    ray_backoff_most: float = 30.0
    ray_steady: float = 60.0
    ray_start: float = 180.0
    ray_stop: float = 8.0
    nodes: float = 1.0
    nodes_stale: float = 15.0
    look: float = 2.0
    misses: int = 3
    serve_backoff: float = 2.0
    serve_backoff_most: float = 60.0
    serve_stop: float = 20.0
    serve_stop_hurry: float = 4.0
    health: float = 2.0
    health_timeout: float = 10.0
    health_dead: float = 30.0
    notice_loss: float = 15.0
    loss_retries: int = 3
    probes: int = 2


@dataclass(frozen=True)
class Wanted:
    """What is to be served, and on which GPUs (address → number)."""

    generation: str
    model: str
    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    nodes: dict[str, int]
    host: str
    port: int
    probe_timeout_s: float
    start_timeout_s: float

    @classmethod
    def read(cls, text: str) -> Wanted | None:
        """What the file says; None is nothing.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: it is half written, or wrong.
        """
        data = json.loads(text)
        if data["v"] != 1:
            raise ValueError(f"its version is {data['v']}, this node reads 1: run vcluster up")
        serve = data["serve"]
        if serve is None:
            return None
        return cls(
            generation=str(serve["generation"]),
            model=str(serve["model"]),
            name=str(serve["name"]),
            argv=tuple(str(word) for word in serve["argv"]),
            env={str(name): str(value) for name, value in serve["env"].items()},
            nodes={str(address): int(count) for address, count in serve["nodes"].items()},
            host=str(serve["host"]),
            port=int(serve["port"]),
            probe_timeout_s=float(serve["probe_timeout_s"]),
            start_timeout_s=float(serve["start_timeout_s"]),
        )


class Attempt:
    """One run of vLLM. Threads write `stage` (phase, detail), `progress`, `verdict`; the loop reads."""

    def __init__(
        self, wanted: Wanted, members: dict[str, str], environment: dict[str, str], log: logging.Handler, pace: Pace
    ) -> None:
        self.members, self.began_at = members, time.time()
        self.stage = ("starting", "")
        self.progress: tuple[int, int] | None = None
        self.verdict: str | None = None
        self.maybe_lost = False
        self._cause: list[str] = []
        self._cause_goes_on = False
        self.over = threading.Event()
        self._wanted, self._log, self._pace = wanted, log, pace
        # One log holds all attempts: who reads it must know where the last one begins, also if vLLM says nothing of it.
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        log.handle(logging.makeLogRecord({"msg": f"{now} {STARTS}"}))
        self.child = Child("vllm", wanted.argv, {**environment, **wanted.env}, self._see)
        threading.Thread(target=self._watch, daemon=True).start()

    def failure(self, what: str) -> dict[str, Any]:
        """How it ended, the likeliest cause first."""
        self.child.drain()
        cause = " ".join(_WHO.sub("", line).strip() for line in self._cause)
        told = f"{what}: {cause[:500]}" if cause else what
        return {"at": round(time.time(), 3), "what": told, "lines": [*self._cause, *self.child.tail]}

    def _see(self, line: str) -> None:
        self._log.handle(logging.makeLogRecord({"msg": line}))
        self.maybe_lost = self.maybe_lost or bool(_MAYBE_LOST.search(line))
        self._look_for_cause(line)
        self._look_for_phase(line)

    def _look_for_cause(self, line: str) -> None:
        if not self._cause and _CAUSE.search(line) and not _CONSEQUENCE.search(line):
            self._cause, self._cause_goes_on = [line], True
        elif self._cause_goes_on and len(self._cause) < _CAUSE_LINES and _MORE_OF_IT.match(line):
            self._cause.append(line)
        else:
            self._cause_goes_on = False

    def _look_for_phase(self, line: str) -> None:
        for pattern, phase, detail in _MARKERS:
            found = pattern.search(line)
            if found and self.stage[0] in _PHASES and _PHASES.index(phase) >= _PHASES.index(self.stage[0]):
                if pattern is _SHARDS:
                    self.progress = int(found[1]), int(found[2])
                self.stage = (phase, detail.format(*found.groups()))

    def _watch(self) -> None:
        """Ask the API until it is healthy, then for completions, then whether it still is."""
        try:
            if not self._await(self._healthy, self._wanted.start_timeout_s):
                return
            for number in range(1, self._pace.probes + 1):
                self.stage = ("probing", f"completion {number}/{self._pace.probes}")
                self._complete()
            self.stage = ("ready", "")
            good = time.monotonic()
            while not self.over.wait(self._pace.health):
                good = time.monotonic() if self._healthy() else good
                if time.monotonic() - good > self._pace.health_dead:
                    raise TimeoutError(f"/health has not answered 200 for {self._pace.health_dead:g} s")
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            self.verdict = f"the server is not usable: {error or type(error).__name__}"

    def _await(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether it came true before the attempt was over."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"it is not ready after {seconds:g} s")
            if self.over.wait(max(self._pace.tick, 0.05)):
                return False
        return True

    def _healthy(self) -> bool:
        try:
            return self._ask("GET", "/health", None, self._pace.health_timeout)[0] == http.client.OK
        except (OSError, http.client.HTTPException):
            return False

    def _complete(self) -> None:
        """One real completion: /health is 200 on an engine that dies of its first request."""
        body = {"model": self._wanted.name, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
        status, text = self._ask("POST", "/v1/completions", json.dumps(body), self._wanted.probe_timeout_s)
        if status != http.client.OK:
            raise ValueError(f"a completion ended with HTTP {status}: {text[:500]}")
        if json.loads(text)["usage"]["completion_tokens"] < 1:
            raise ValueError("a completion had no token")

    def _ask(self, method: str, path: str, body: str | None, timeout: float) -> tuple[int, str]:
        # Not urllib: it would ask a proxy named in the environment for our own port.
        host = _ANY.get(self._wanted.host, self._wanted.host)
        connection = http.client.HTTPConnection(host, self._wanted.port, timeout=timeout)
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("VCLUSTER_API_KEY_FILE"):
            headers["Authorization"] = f"Bearer {Path(key).read_text().strip()}"
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(65536).decode("utf-8", "replace")
        finally:
            connection.close()


def outdated(state: Path, request: Mapping[str, Any], write: Callable[[Path, Mapping[str, Any]], bool]) -> bool:
    """Whether a request is older than one that was accepted, which is put back; a new one is accepted here.

    Each writer counts one up. A laptop that slept while it wrote must not undo what was asked for meanwhile.
    """
    kept = state / "accepted.json"
    try:
        accepted = json.loads(kept.read_text())
    except (OSError, ValueError):
        accepted = {}
    if request == accepted:
        return False
    # One without an epoch was written before requests had one, or by an earlier version of vcluster.
    epoch, before = int(request.get("epoch", 0)), int(accepted.get("epoch", 0))
    if epoch <= before and before > 0:
        say("node", f"refused request {epoch}: {before} was accepted before it")
        write(state / "wanted.json", accepted)
        return True
    write(kept, request)
    return False
