"""Runs the parts of replicas that the head orders of this node, and reports how they do."""

from __future__ import annotations

import logging
import logging.handlers
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from vllm_cluster.serving.node.attempt import Attempt
from vllm_cluster.serving.node.ending import Ending
from vllm_cluster.serving.node.key_check import KEY_FILE
from vllm_cluster.serving.node.process import Child
from vllm_cluster.serving.node.timing import Timing
from vllm_cluster.wire.order import Part
from vllm_cluster.wire.parts import EndKind, PartOrder, PartReport

LOG_BYTES = 16 * 1024 * 1024


class PartRunner:
    """Every part of this node, from its order until nothing of it is left and no order names it."""

    def __init__(
        self, state: Path, pace: Timing, hurry: threading.Event, reap: Callable[[], None], key: str = ""
    ) -> None:
        """Keep logs in `state`; what answers requests wants the key in the file `key`, or where none, the cluster's."""
        self._pace, self._hurry, self._reap = pace, hurry, reap
        self._running: dict[str, _Running] = {}
        self._never: tuple[str, ...] = ()  # that shall end before they began here
        self._state = state
        self._logs: dict[int, logging.Handler] = {}
        # The module of our middleware lies beside the package, where vLLM imports it from.
        here = str(Path(__file__).resolve().parents[__name__.count(".")])
        path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
        self.environment = {**os.environ, "PYTHONPATH": path}
        self._key = {KEY_FILE: key} if key else {}

    @property
    def children(self) -> list[Child]:
        """The processes that this started and waits for itself."""
        return [running.attempt.child for running in self._running.values()]

    @property
    def pids(self) -> set[int]:
        """Every process of every part."""
        return {pid for child in self.children for pid in child.alive()}

    def keep(self, orders: Iterable[PartOrder]) -> None:
        """Start and end what these orders ask for; what none names any more ends."""
        wanted = {order.id: order for order in orders}
        self._never = tuple(id for id, order in wanted.items() if order.ending and id not in self._running)
        for id, running in list(self._running.items()):
            order = wanted.get(id)
            if order is None or order.ending:
                running.end(order.ending if order else "failed")
            running.look()
            if order is None and not running.left:
                del self._running[id]
        for id, order in wanted.items():
            # GPUs are free only once what ran there before has ended whole; what others wait for does not count.
            taken = any(one.holds and one.part.meets(order.part) for one in self._running.values())
            if id not in self._running and not order.ending and not taken:
                attempt = Attempt(order, {**self.environment, **self._key}, self._log(order.index), self._pace)
                self._running[id] = _Running(attempt, order.part, self._grace)

    def reports(self) -> tuple[PartReport, ...]:
        """Return how each part does; one that shall end before it began is over."""
        never = (PartReport(id, over=True) for id in self._never)
        return (*(running.report(id) for id, running in self._running.items()), *never)

    def close(self) -> None:
        """End every part because this program ends: `up` makes the node again, and none of them has failed."""
        for running in self._running.values():
            running.end("asked")
        while self._running:
            self.keep(())
            self._reap()
            if all(running.over for running in self._running.values()):
                return
            time.sleep(0.02)

    def _log(self, index: int) -> logging.Handler:
        """The log of a replica's parts: each has its own, or one would read as part of another's start."""
        if index not in self._logs:
            name = f"serve-{index}.log" if index else "serve.log"
            self._logs[index] = logging.handlers.RotatingFileHandler(
                self._state / name, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8", delay=True
            )
        return self._logs[index]

    def _grace(self, how: EndKind) -> float:
        # Of an engine that has failed nothing is under way any more, and its GPUs are wanted.
        hurry = how != "asked" or self._hurry.is_set()
        return self._pace.serve_stop_hurry if hurry else self._pace.serve_stop


class _Running:
    """An attempt, and its end."""

    def __init__(self, attempt: Attempt, part: Part, grace: Callable[[EndKind], float]) -> None:
        self.attempt, self.part, self._grace = attempt, part, grace
        self.left: list[int] = []
        self.over = False
        self._ending: Ending | None = None
        self._stacks: threading.Thread | None = None
        self._how: EndKind = ""

    @property
    def holds(self) -> bool:
        """Whether its GPUs may not be free."""
        return bool(self.left) or not self.over

    def end(self, how: EndKind) -> None:
        """Begin its end; of what is stuck the stacks are written first."""
        if self._how:
            return
        self._how = how
        if how == "asked":
            self.attempt.mark_stop()
        self.attempt.over.set()
        if how == "stuck":
            self._stacks = threading.Thread(target=self.attempt.write_stacks, daemon=True)
            self._stacks.start()

    def look(self) -> None:
        """Do what is due."""
        if not self._how:
            self.attempt.look_for_stopped()
        elif self._ending:
            self.left, self.over = self._ending.look()
        elif not (self._stacks and self._stacks.is_alive()):
            self._ending = Ending(self.attempt.child.alive, lambda: self._grace(self._how))

    def report(self, id: str) -> PartReport:
        """Return how it does."""
        return self.attempt.report(id, tuple(self.left), over=self.over)
