"""One start of a replica: its parts, wherever they run, in the order that they get and by what is reported of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_cluster.remote.node.parts import PartRunner
from vllm_cluster.remote.node.roll import HeadRoll
from vllm_cluster.wire.order import Part, Placement, Replica
from vllm_cluster.wire.parts import EndKind, PartOrder, PartReport

Nodes = Sequence[Mapping[str, Any]]


@dataclass
class Start:
    """One start of a replica: its parts, those of them that have a command, and how it ends.

    `members` are the nodes that it needs, their ids by address. `ending` is why it ends, once it does, and `how`;
    `then` is what follows when nothing of it is left.
    """

    id: str
    placed: Placement
    members: dict[str, str]
    began: float
    ordered: float
    ending: str = ""
    how: EndKind = ""
    then: Callable[[], None] = lambda: None
    first: Part | None = None  # that ended
    seen: set[str] = field(default_factory=set)  # the hosts that have reported their part

    @property
    def parts(self) -> tuple[Part, ...]:
        """Those that run a command."""
        return tuple(part for part in self.placed.replica.parts if part.argv)

    def order(self, part: Part) -> PartOrder:
        """What the node of a part is asked for."""
        replica, deployment = self.placed.replica, self.placed.deployment
        api = (replica.host, replica.port) if part is replica.leader else None
        return PartOrder(self.id, deployment.name, deployment.model, part, api, self.how)


class Parts:
    """The parts of a replica wherever they run: on this node, and over the roll on others."""

    def __init__(self, address: str, runner: PartRunner, roll: HeadRoll) -> None:
        self.address, self._runner, self._roll = address, runner, roll
        self.environment = runner.environment

    def order(self, start: Start | None) -> None:
        """Have what belongs to this start run, and nothing else."""
        replica = start.placed.replica if start else None
        orders = {self.at(replica, part): (start.order(part),) for part in start.parts} if start and replica else {}
        self._runner.keep(orders.pop(self.address, ()))
        self._roll.order(orders)

    def report(self, start: Start, part: Part) -> PartReport | None:
        """How a part does; None where its node has not reported it yet."""
        reports = self.reports(self.at(start.placed.replica, part))
        return next((one for one in reports if one.id == start.id), None)

    def reports(self, address: str) -> tuple[PartReport, ...]:
        """How all parts of a node do."""
        return self._runner.reports() if address == self.address else self._roll.reports(address)

    def members(self) -> Nodes:
        """The nodes on the roll."""
        return self._roll.members()

    def at(self, replica: Replica, part: Part) -> str:
        """The address of a part's node: what has Ray start its ranks runs beside the head's Ray, wherever that was."""
        return self.address if replica.grouped else part.address
