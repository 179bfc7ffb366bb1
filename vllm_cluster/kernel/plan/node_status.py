"""What a node's status is worth, and the members of the group against the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.explain.progress import is_trouble
from vllm_cluster.wire.reading import RefusedDocument, convert, document
from vllm_cluster.wire.roll import Roll
from vllm_cluster.wire.status import MAX_STATUS, VERSION, GroupNode, GroupStatus, NodeStatus, ServeStatus

# A node program that has missed so many of its beats is stopped, or cannot write.
MISSED_BEATS = 6
# Docker's clock comes in whole seconds, rounded down, and a little earlier than it is read.
DATE_SECONDS = 2.0


@dataclass(frozen=True)
class GroupMembership:
    """The living members against the plan, by address."""

    missing: tuple[str, ...]
    foreign: tuple[str, ...]
    wrong: tuple[str, ...]
    have: int
    want: int

    @property
    def complete(self) -> bool:
        """Whether exactly the planned GPUs are there, at the planned addresses."""
        return not (self.missing or self.foreign or self.wrong)


def current(status: NodeStatus, started: float, now: float | None) -> NodeStatus | None:
    """What a status is worth at `now`, for a container that started at `started`; both by the host's own clock.

    None where it was written before that start. Where it is older than several beats, its state is unknown. A
    clock that was put back since the start makes the start a moment to come, which does not show what came first.
    """
    if status.beat is None or now is None:
        return None if status.updated < started else status
    if status.updated < started < now + DATE_SECONDS:
        return None
    age = abs(now - status.updated)
    return status if age <= status.beat * MISSED_BEATS else _distrusted(status, age)


def _distrusted(status: NodeStatus, age: float) -> NodeStatus:
    why = f"the node program has not written its status for {age:.0f} s: it is stopped, or its disk is full"
    group = replace(status.group, state="unknown", error=why, nodes=())
    serve = _unknown(status.serve, why) if status.serve else None
    replicas = tuple(_unknown(one, why) for one in status.replicas)
    return replace(status, group=group, serve=serve, replicas=replicas, roll=None)


def _unknown(serve: ServeStatus, why: str) -> ServeStatus:
    return replace(serve, phase="unknown", detail=why, token_age_seconds=None)


# A node writes it again at each beat.
_UNREADABLE = (
    "the same command again; where it stays so, leave the host out of the inventory, or end all models:\nvcluster down"
)


class UnreadableStatus(HostError):
    """A status file of a host that this vcluster cannot read."""

    code = "unreadable-status"


def compare_members(planned: Mapping[str, int], nodes: Sequence[GroupNode]) -> GroupMembership:
    """Compare what is planned (GPUs by address) with the living members.

    Two living nodes at one address (one has just died, unnoticed, the other has taken its place) count as wrong.
    """
    alive: dict[str, float] = {}
    for node in nodes:
        if node.alive:
            alive[node.address] = alive.get(node.address, 0) + node.gpus
    return GroupMembership(
        missing=tuple(address for address in planned if address not in alive),
        foreign=tuple(address for address in alive if address not in planned),
        wrong=tuple(address for address in planned if address in alive and alive[address] != planned[address]),
        have=int(sum(count for address, count in alive.items() if address in planned)),
        want=sum(planned.values()),
    )


def absent(roll: Roll | None, planned: Mapping[str, str]) -> dict[str, str]:
    """What is wrong with those of the planned nodes (host by address) that are not here by the head's roll, by host.

    Empty where the head's node program, of an earlier version, keeps none.
    """
    if roll is None:
        return {}
    states = {node.address: node.state for node in roll.nodes}
    words = {"silent": "its node sends no beat", "gone": "its node has gone"}
    found = {name: states.get(address, "") for address, name in planned.items()}
    return {name: words.get(state, "its node has not joined") for name, state in found.items() if state != "here"}


def last_words(group: GroupStatus) -> str:
    """The most informative line of a group's last output, empty where there is none."""
    lines = [line.strip() for line in (group.error or "").splitlines() if line.strip()]
    return next((line for line in reversed(lines) if is_trouble(line)), lines[-1] if lines else "")


def parse_status(raw: bytes, host: str) -> NodeStatus:
    """Read the status.json of a host; keys that a newer node may have added are passed over.

    Raises:
        UnreadableStatus: it is of another version, or not what a node writes.
    """
    what = "its status.json"
    try:
        found = document(raw, what, MAX_STATUS)
        version = found.get("v", VERSION) if isinstance(found, dict) else VERSION
        if version == VERSION or type(version) is not int:
            return convert(NodeStatus, found, what)
    except RefusedDocument as refused:
        why = f"{refused.field} {refused.why}".strip()
        raise UnreadableStatus(host, f"{what} cannot be read: {why}", hint=_UNREADABLE) from None
    raise UnreadableStatus(
        host,
        f"{what} has version {version}; this vcluster reads version {VERSION}",
        hint="use the vcluster that started the cluster, or with this one:\nvcluster up",
    )
