"""What a node reports about itself, read from its status.json; and the members of the group against the plan."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, AllowInfNan, Field, StrictInt, TypeAdapter, ValidationError

from vllm_cluster.errors import VclusterError
from vllm_cluster.explain.progress import TROUBLE

VERSION = 1
GroupState = Literal["waiting", "starting", "up", "down", "unknown"]
# NaN and Infinity are numbers to Python's JSON alone.
Number = Annotated[float, AllowInfNan(False)]
MAX_NAME, MAX_ERRORS = 4096, 3


def _is_address(text: str) -> str:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        # Without the text itself.
        raise ValueError("not an address") from None
    # The zone of an address may be any text.
    if getattr(found, "scope_id", None):
        raise ValueError("an address with a zone")
    return text


def _is_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("a character that cannot be printed")
    return text


# These become a URL, words of commands and rows of tables on a person's machine; a host may write anything.
Address = Annotated[str, AfterValidator(_is_address)]
PortNumber = Annotated[StrictInt, Field(ge=1, le=65535)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME), AfterValidator(_is_printable)]
# Those of a start are in their order; "unknown" is set here: the node program has written nothing for too long.
Phase = Literal[
    "waiting",
    "starting",
    "importing",
    "joining",
    "downloading",
    "loading",
    "compiling",
    "profiling",
    "capturing",
    "probing",
    "ready",
    "hung",
    "failed",
    "backoff",
    "stopping",
    "unknown",
]
# A node program that has missed so many of its beats is stopped, or cannot write.
MISSED_BEATS = 6
# Docker's clock comes in whole seconds, rounded down, and a little earlier than it is read.
DATE_SECONDS = 2.0


@dataclass(frozen=True)
class GroupNode:
    """One member as the backend lists it; a dead one stays in the list."""

    id: str
    address: str
    alive: bool
    gpus: Number


@dataclass(frozen=True)
class GroupStatus:
    """What joins the nodes, on one of them; the other `nodes` are known on the head only."""

    state: GroupState
    restarts: int
    error: str | None
    version: str | None
    nodes: tuple[GroupNode, ...]
    # In a row; an earlier version of the node program does not write it.
    failures: int = 0

    @property
    def words(self) -> str:
        """The most informative line of its last output, empty where there is none."""
        lines = [line.strip() for line in (self.error or "").splitlines() if line.strip()]
        return next((line for line in reversed(lines) if TROUBLE.search(line)), lines[-1] if lines else "")

    @property
    def ended(self) -> bool:
        """Whether it has ended by itself, and is not up again."""
        return self.state in ("down", "starting") and bool(self.error)


@dataclass(frozen=True)
class ServeFailure:
    """How one run of vLLM ended; the first line is the root cause where it is known."""

    time: Number
    summary: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class FailedRequest(ServeFailure):
    """A request that could not be served, and in whose place the one before it is."""

    generation: str
    model: Name
    name: Name


@dataclass(frozen=True)
class ServeStatus:
    """What is served and how far it is; `gpus` are those that have joined and those that are wanted.

    `request` counts what was asked for; `instead_of` is the one that failed, `away_seconds` how long the one before it
    was not served, `rollback_to` what is served again if this one does not get ready. `phases` are those of this start
    that are over, with their seconds; `last_line` is the last one of vLLM's log. `ranks` are the GPUs that it takes
    (address → number), empty where that is left to the backend.
    """

    generation: str
    model: Name
    name: Name
    host: Address
    port: PortNumber
    phase: Phase
    detail: str
    progress: tuple[int, int] | None
    since: Number
    attempt: int
    gpus: tuple[Number, Number]
    first_failure: ServeFailure | None
    failure: ServeFailure | None
    ready_at: Number | None
    seconds_to_ready: Number | None
    request: int = 0
    instead_of: FailedRequest | None = None
    rollback_to: Name | None = None
    away_seconds: Number | None = None
    phases: tuple[tuple[str, Number], ...] = ()
    last_line: str = ""
    token_age_seconds: Number | None = None
    ranks: Mapping[str, int] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The phase with its detail."""
        return f"{self.phase}: {self.detail}" if self.detail else self.phase


@dataclass(frozen=True)
class NodeStatus:
    """One node's status.json; `error` is about its request, not about what it runs.

    It is written again at least every `beat` seconds; a node program of an earlier version did not do that.
    """

    role: str
    updated: Number
    # An earlier version's key is the name of the one backend there was.
    group: Annotated[GroupStatus, Field(validation_alias=AliasChoices("group", "ray"))]
    serve: ServeStatus | None
    error: str | None = None
    beat: Number | None = None


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
    serve = replace(status.serve, phase="unknown", detail=why, token_age_seconds=None) if status.serve else None
    return replace(status, group=replace(status.group, state="unknown", error=why, nodes=()), serve=serve)


class UnreadableStatus(VclusterError):
    """A status file that this vcluster cannot read."""

    code = "unreadable-status"


def membership(planned: Mapping[str, int], nodes: Sequence[GroupNode]) -> GroupMembership:
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


def parse_status(raw: bytes) -> NodeStatus:
    """Read a status.json; keys that a newer node may have added are passed over.

    Raises:
        UnreadableStatus: it is of another version, or not what a node writes.
    """
    try:
        version = _VERSION.validate_json(raw)["v"]
        if version == VERSION:
            return _STATUS.validate_json(raw)
    except KeyError:
        raise UnreadableStatus("a node's status.json cannot be read: no version", hint="vcluster up") from None
    except ValidationError as error:
        # Without what was found there, which may be of any length.
        wrong = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:MAX_ERRORS])
        raise UnreadableStatus(f"a node's status.json cannot be read: {wrong}", hint="vcluster up") from error
    raise UnreadableStatus(
        f"a node's status.json has version {version}; this vcluster reads version {VERSION}",
        hint="use the vcluster that started the cluster, or with this one:\nvcluster up",
    )


_VERSION = TypeAdapter(dict[str, Any])
_STATUS = TypeAdapter(NodeStatus)
