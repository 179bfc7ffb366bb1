"""One start of a replica: its parts, wherever they run, in the order that they get and by what is reported of them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from vllm_cluster.serving.node.ending import KILL_SECONDS
from vllm_cluster.serving.node.head_roll import HeadRoll
from vllm_cluster.serving.node.parse_argv import Place
from vllm_cluster.serving.node.parts import PartRunner
from vllm_cluster.serving.node.stacks import SECONDS_IN_ALL
from vllm_cluster.serving.node.timing import Timing
from vllm_cluster.wire.order import Part, Placement, Replica
from vllm_cluster.wire.parts import EndKind, PartOrder, PartReport
from vllm_cluster.wire.status import GroupNode
from vllm_cluster.wire.values import LOOPBACK

Nodes = Sequence[GroupNode]
# Overdue: its node has had the time that an honest one needs to end it, and has not reported that it did.
PartState = Literal["runs", "ended", "away", "overdue"]


@dataclass
class Start:
    """One start of a replica: its parts, those of them that have a command, and how it ends.

    `members` are the nodes that it needs, their ids by address. `at` is where its API answers, to the front alone,
    which shows it the key in `key_file`. `ending` is why it ends, once it shall, and `how`, once what was open there
    has ended or its time is over; `then` is what follows when nothing of it is left, or by `end_by` at the latest.
    `overdue` are the words for those that have not ended by then.
    """

    id: str
    placed: Placement
    members: dict[str, str]
    began: float
    ordered: float
    at: Place
    key_file: str | None = None
    ending: str = ""
    how: EndKind = ""
    drained_by: float = 0.0
    end_by: float = 0.0
    overdue: str = ""
    then: Callable[[], None] = lambda: None
    first: Part | None = None  # that ended
    seen: set[str] = field(default_factory=set)  # the hosts that have reported their part

    @property
    def replica(self) -> str:
        """What the front calls it."""
        return f"run-{self.id}"

    @property
    def parts(self) -> tuple[Part, ...]:
        """Those that run a command."""
        return tuple(part for part in self.placed.replica.parts if part.argv)

    def end(self, how: EndKind, pace: Timing) -> None:
        """End its parts, by the head's own clock in no longer than their nodes need, and some beats."""
        self.how = how
        grace = pace.serve_stop if how == "asked" else pace.serve_stop_hurry
        needs = grace + KILL_SECONDS + (SECONDS_IN_ALL if how == "stuck" else 0.0)
        self.end_by = time.monotonic() + needs + pace.roll_lost

    def lost(self, gone: Sequence[str]) -> str:
        """Who is missing, by address: Ray knows no more than that, the roll the hosts."""
        if self.placed.replica.grouped:
            return f"Ray has lost {', '.join(gone)}"
        hosts = {part.address: part.host for part in self.placed.replica.parts}
        return f"the head has lost {', '.join(f'{hosts.get(place, place)} ({place})' for place in gone)}"

    def why(self, part: Part, cause: str) -> str:
        """What a part has printed of the end, behind the words for that; with its host where another one ended."""
        return f": {cause}" if part is self.first or len(self.parts) == 1 else f"; on {part.host}: {cause}"

    def order(self, part: Part) -> PartOrder:
        """What the node of a part is asked for."""
        deployment, index = self.placed.deployment, self.placed.index
        several = deployment.replicas > 1 or index > 0
        if part is not self.placed.replica.leader:
            return PartOrder(self.id, deployment.name, deployment.model, part, None, self.how, index, several)
        host, port = self.at
        argv = [word for word in part.argv if not word.startswith(("--host=", "--port="))]
        moved = replace(part, argv=(*argv, f"--host={host}", f"--port={port}"))
        return PartOrder(self.id, deployment.name, deployment.model, moved, self.at, self.how, index, several)


class Parts:
    """The parts of replicas wherever they run: on this node, and over the roll on others."""

    def __init__(self, address: str, runner: PartRunner, roll: HeadRoll) -> None:
        self.address, self._runner, self._roll = address, runner, roll
        self.environment = runner.environment
        self._starts: dict[int, Start] = {}

    def order(self, index: int, start: Start | None) -> None:
        """Have what belongs to this start of a replica run, and nothing else of that."""
        self._starts.pop(index, None)
        if start:
            self._starts[index] = start
        orders: dict[str, tuple[PartOrder, ...]] = {}
        for one in self._starts.values():
            for part in one.parts:
                at = self.at(one.placed.replica, part)
                orders[at] = (*orders.get(at, ()), one.order(part))
        self._runner.keep(orders.pop(self.address, ()))
        self._roll.order(orders)

    def state(self, start: Start, part: Part, members: Collection[str]) -> PartState:
        """What has become of a part, by what the head knows itself and not by the silence of its node.

        Who is not one of the `members`, by address, counts as away; where there are none, no record has been read.
        """
        at, one = self.at(start.placed.replica, part), self.report(start, part)
        if at != self.address and ((members and at not in members) or not self._roll.alive(at)):
            return "away"
        if one and one.over:
            return "ended"
        late = start.how and at != self.address and time.monotonic() >= start.end_by
        return "overdue" if late else "runs"

    def held(self, replica: Replica) -> list[str]:
        """What has not ended yet on the GPUs that a start needs, for people."""
        held = []
        for part in replica.parts:
            at = self.at(replica, part)
            if part.argv and (reports := list(self._left(at, part))):
                left = [str(pid) for one in reports for pid in one.left]
                what = f"process {', '.join(left)} of the last start" if left else "the last start"
                held.append(f"{what} has not ended{f' on {part.host}' if at != self.address else ''}")
        return held

    def _left(self, address: str, part: Part) -> Iterator[PartReport]:
        """What a node has of starts that are over, or that end on the same GPUs: they may still hold these."""
        starts = {start.id: start for start in self._starts.values()}
        for one in self.reports(address):
            start = starts.get(one.id)
            before = start is None or (start.ending and any(part.meets(other) for other in start.parts))
            if before and (one.left or not one.over):
                yield one

    def report(self, start: Start, part: Part) -> PartReport | None:
        """How a part does; None where its node has not reported it yet."""
        reports = self.reports(self.at(start.placed.replica, part))
        return next((one for one in reports if one.id == start.id), None)

    def last(self, start: Start) -> list[tuple[Part, PartReport]]:
        """What was reported last of the parts of a start, of that first which ended first."""
        parts = sorted(start.parts, key=lambda part: part is not start.first)
        return [(part, one) for part in parts if (one := self.report(start, part))]

    def where(self, start: Start, part: Part) -> str:
        """The host of a part for people; empty where it is this one, and all of the start is here."""
        away = len(start.parts) > 1 or self.at(start.placed.replica, part) != self.address
        return f" on {part.host}" if away else ""

    def reports(self, address: str) -> tuple[PartReport, ...]:
        """How all parts of a node do."""
        return self._runner.reports() if address == self.address else self._roll.reports(address)

    def complain(self, why: str) -> None:
        """Show beside the roll what is wrong with a node."""
        self._roll.complain(why)

    def members(self) -> Nodes:
        """The nodes on the roll."""
        return self._roll.members()

    def at(self, replica: Replica, part: Part) -> str:
        """The address of a part's node: what has Ray start its ranks runs beside the head's Ray, wherever that was."""
        return self.address if replica.grouped else part.address


def unended(where: list[str]) -> str:
    """The words for parts that are waited for, or were, behind why they end; empty for the only one, which is here."""
    return f"; its part has not ended{' and'.join(where)}" if any(where) else ""


def free_place() -> Place:
    """A port of this host alone that is free now."""
    with socket.socket() as one:
        one.bind((LOOPBACK, 0))
        return LOOPBACK, int(one.getsockname()[1])
