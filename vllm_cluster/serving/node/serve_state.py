"""What has become of one request so far, and whether its GPUs are there."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from vllm_cluster.serving.node.start_movement import span
from vllm_cluster.serving.node.timing import Timing, boot_seconds
from vllm_cluster.wire.order import Placement
from vllm_cluster.wire.status import GroupNode, ServeFailure, ServeMemory


def idle_gpus(planned: Mapping[str, int], ranks: Mapping[str, int]) -> dict[str, int]:
    """The planned GPUs that no rank takes, where it is known which do."""
    left = {address: count - ranks.get(address, 0) for address, count in planned.items()} if ranks else {}
    return {address: count for address, count in left.items() if count > 0}


def compare_gpus(
    planned: Mapping[str, int],
    nodes: Iterable[GroupNode],
    ranks: Mapping[str, int],
    names: Mapping[str, str],
    *,
    grouped: bool,
) -> tuple[float, list[str]]:
    """How many planned GPUs there are, and what is not as planned. Ghosts at one address add up, and so are wrong.

    A host without ranks may be away: the model does not need it. Where it is `grouped`, Ray places ranks on any GPU of
    its table, so that all of that counts. A node on the roll gives its own number of GPUs, and holds up no other host.
    """
    alive: dict[str, float] = {}
    for node in nodes:
        if node.alive:
            alive[node.address] = alive.get(node.address, 0) + node.gpus
    needed = dict.fromkeys([*ranks, *(() if ranks else planned)])
    wrong = [f"{names.get(address, address)} is missing" for address in needed if address not in alive]
    counted = alive.keys() if grouped else alive.keys() & needed.keys()
    wrong += [f"{address} is not of this cluster" for address in alive if address in counted - planned.keys()]
    for address, count in planned.items():
        if address in counted and alive[address] != count:
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
    waited: tuple[tuple[str, float], ...] = ()  # for its GPUs, before this start
    again_at: float = 0.0
    judge_until: float | None = None
    once_ready: bool = False
    first_failure: ServeFailure | None = None
    failure: ServeFailure | None = None
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
        return self.failure.summary if self.failure else ""

    def fail(self, summary: str, lines: tuple[str, ...] = ()) -> None:
        """Remember how an attempt ended; the first one is the one that explains."""
        self.failure = ServeFailure(round(time.time(), 3), summary, lines)
        self.first_failure = self.first_failure or self.failure
        self.failures += 1

    def replaced(self, by: str) -> None:
        """Wait for nodes that a person has made again: no failure, and no start of the budget."""
        del self.starts[-1:]
        self.set_phase("waiting", by)

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

    @property
    def memory(self) -> ServeMemory:
        """What must outlive the container."""
        kept = (self.once_ready, self.phase == "failed", self.detail, self.first_failure, self.failure)
        return ServeMemory(self.wanted.generation, *kept, tuple(self.starts))

    def remember(self, memory: ServeMemory) -> None:
        """Take over what a container before this one has learned about the same request."""
        if memory.generation != self.wanted.generation:
            return
        self.once_ready, self.starts = memory.once_ready, [*memory.starts]
        self.first_failure, self.failure = memory.first_failure, memory.failure
        if memory.failed:
            self.set_phase("failed", memory.detail or self.what)
