"""Keeps the front running on the head while a model is wanted, and writes for it where requests go."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from vllm_cluster.serving.node.attempt import connect_error
from vllm_cluster.serving.node.files import write_whole
from vllm_cluster.serving.node.front_processes import process_count, read_status
from vllm_cluster.serving.node.parse_argv import Place
from vllm_cluster.serving.node.process import Child, log_line
from vllm_cluster.serving.node.timing import Timing
from vllm_cluster.wire.front import FrontDeployment, FrontRoutes, FrontStatus, ReplicaState

ROUTES, STATUS = "front-routes.json", "front-status.json"


class FrontKeeper:
    """The front's process, from the first request until nothing is wanted; one that ends is started again."""

    def __init__(self, state: Path, pace: Timing, environment: Mapping[str, str]) -> None:
        self.child: Child | None = None
        # Why it cannot listen, and how the last one ended by itself.
        self.taken = self.ended = ""
        self._state, self._pace, self._environment = state, pace, environment
        self._at: Place | None = None
        self._due = 0.0
        self._routes = FrontRoutes(1)

    def keep(self, at: Place | None, deployments: tuple[FrontDeployment, ...] = ()) -> None:
        """Have it listen there, and nowhere where that is None, with these routes."""
        if self.child and (self.child.code() is not None or at != self._at):
            self._end(self.child)
        if at is None:
            self.taken = ""
            return
        self._write(deployments)
        if self.child is None and time.monotonic() >= self._due:
            self._start(at)

    @property
    def _status(self) -> FrontStatus | None:
        """What the front that runs has written last."""
        found = read_status(self._state / STATUS)
        return found if found and self.child and found.pid == self.child.pid else None

    def sends_to(self, replica: str) -> bool:
        """Whether requests reach a replica now."""
        return self._reads(replica, "ready") is not None

    def open(self, replica: str) -> int | None:
        """The requests that are open at a replica that gets no new one; None where the front does not know that yet."""
        status = self._reads(replica, "draining")
        row = status.replicas.get(replica) if status else None
        return (row.open if row else 0) if status else None

    def _reads(self, replica: str, state: ReplicaState) -> FrontStatus | None:
        """Read what the front has written since a replica is in this state for it; None before."""
        rows = (row for one in self._routes.deployments for row in one.replicas)
        status = self._status if any((row.id, row.state) == (replica, state) for row in rows) else None
        return status if status and status.routes == self._routes.number else None

    def _start(self, at: Place) -> None:
        self._due = time.monotonic() + self._pace.front_again
        if connect_error(*at) is None:
            # Another program's server would answer our clients.
            self.taken = f"port {at[1]} of {at[0]} is taken by another program"
            return
        # Of a container before this one, whose processes had the same numbers.
        (self._state / STATUS).unlink(missing_ok=True)
        self.taken, self._at = "", at
        argv = [sys.executable, "-m", "vllm_cluster.serving.node.front", f"--listen={at[0]}:{at[1]}"]
        argv += [
            f"--routes={self._state / ROUTES}",
            f"--status={self._state / STATUS}",
            f"--processes={process_count()}",
        ]
        # Nothing of the folder that the container happens to be in is imported; Python 3.10 does not know it yet.
        environment = {**self._environment, "PYTHONSAFEPATH": "1"}
        self.child = Child("front", argv, environment, lambda line: None)

    def _end(self, child: Child) -> None:
        if (code := child.code()) is None:
            if child.pid:
                os.kill(child.pid, signal.SIGTERM)
            return
        child.read_rest()
        last = f": {child.tail[-1].strip()[:200]}" if child.tail else ""
        self.ended = f"the front has ended with exit code {code}{last}"
        log_line("front", self.ended)
        self.child = self._at = None

    def _write(self, deployments: tuple[FrontDeployment, ...]) -> None:
        path = self._state / ROUTES
        if deployments == self._routes.deployments and self._routes.number and path.exists():
            return
        routes = replace(self._routes, number=self._routes.number + 1, deployments=deployments)
        if write_whole(path, asdict(routes)):
            self._routes = routes
