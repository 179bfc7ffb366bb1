"""What a node reports about itself: the types of its status.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from vllm_cluster.wire.backends import BackendName
from vllm_cluster.wire.reading import ALSO
from vllm_cluster.wire.roll import MAX_GPUS, Roll
from vllm_cluster.wire.values import (
    Address,
    Count,
    Line,
    Number,
    Port,
    RunName,
    ServedName,
    at_most,
    between,
    brief,
    first,
    words,
)

VERSION = 1
# In bytes. A page that is fed with it has several, and Python takes four bytes a character where one of a text is rare:
# with twice as much it took 120 MB. A head of 256 hosts writes 1 MB at most, while 64 of its replicas have failed.
MAX_STATUS = 3 << 19
# 256 hosts, and what has died of them, of which Ray keeps a thousand.
MAX_NODES = 2048
# Hosts with ranks of a replica, and of all replicas.
MAX_HOSTS, MAX_OF_ALL = 512, 8192
GroupState = Literal["waiting", "starting", "up", "down", "unknown"]
Gpus = Annotated[float, between(0, MAX_GPUS)]
# 256 hosts of eight have 2048.
AllGpus = Annotated[float, between(0, MAX_GPUS * MAX_HOSTS)]
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
# Of what any program prints: a million characters of one failure would be in each picture of a cluster.
Words = Annotated[str, words, brief(8000)]
Lines = Annotated[tuple[Annotated[str, words, brief(1000)], ...], first(64)]


@dataclass(frozen=True)
class GroupNode:
    """One member as the backend lists it; a dead one stays in the list, `free` is None where it is not known."""

    id: Line
    address: Address
    alive: bool
    gpus: Gpus
    free: Gpus | None = None


@dataclass(frozen=True)
class GroupTable:
    """The members as the backend lists them now."""

    nodes: tuple[GroupNode, ...]


@dataclass(frozen=True)
class GroupStatus:
    """What joins the nodes, on one of them; the other `nodes` are known on the head only."""

    state: GroupState
    restarts: Count
    error: Words | None
    version: Line | None
    nodes: Annotated[tuple[GroupNode, ...], first(MAX_NODES)]
    # In a row; an earlier version of the node program does not write it.
    failures: Count = 0
    # What joins them: without Ray, the roll alone.
    by: BackendName = "ray"

    @property
    def who(self) -> str:
        """What joins the nodes, for people."""
        return "Ray" if self.witnessed else "the node program"

    @property
    def witnessed(self) -> bool:
        """Whether another than the roll counts the nodes' GPUs."""
        return self.by == "ray"

    @property
    def ended(self) -> bool:
        """Whether it has ended by itself, and is not up again."""
        return self.state in ("down", "starting") and bool(self.error)


@dataclass(frozen=True)
class ServeFailure:
    """How one run of vLLM ended; the first line is the root cause where it is known."""

    time: Number
    summary: Words
    lines: Lines


@dataclass(frozen=True)
class FailedRequest(ServeFailure):
    """A request that could not be served, and in whose place the one before it is."""

    generation: RunName
    model: ServedName
    name: ServedName


@dataclass(frozen=True)
class ServeMemory:
    """What a container has learned about a request, for the one after it: serve.json."""

    generation: RunName
    once_ready: bool
    failed: bool
    detail: Words = ""
    first_failure: ServeFailure | None = None
    failure: ServeFailure | None = None
    starts: tuple[Number, ...] = ()


@dataclass(frozen=True)
class ServeStatus:
    """What is served and how far it is; `gpus` are those that have joined and those that are wanted.

    `request` counts what was asked for; `instead_of` is the one that failed, `away_seconds` how long the one before it
    was not served, `rollback_to` what is served again if this one does not get ready. `phases` are those of this start
    that are over, with their seconds; `last_line` is the last one of vLLM's log. `ranks` are the GPUs that it takes
    (address → number), empty where that is left to the backend. `index` is that of its replica.
    """

    generation: RunName
    model: ServedName
    name: ServedName
    host: Address
    port: Port
    phase: Phase
    detail: Words
    progress: tuple[Count, Count] | None
    since: Number
    attempt: Count
    gpus: tuple[AllGpus, AllGpus]
    first_failure: ServeFailure | None
    failure: ServeFailure | None
    ready_at: Number | None
    seconds_to_ready: Number | None
    request: Count = 0
    instead_of: FailedRequest | None = None
    rollback_to: ServedName | None = None
    away_seconds: Number | None = None
    phases: Annotated[tuple[tuple[Words, Number], ...], first(64)] = ()
    last_line: Words = ""
    token_age_seconds: Number | None = None
    ranks: Annotated[Mapping[Address, Count], at_most(MAX_HOSTS)] = field(default_factory=dict)
    backend: BackendName = "ray"
    index: Count = 0

    @property
    def words(self) -> str:
        """The phase with its detail."""
        return f"{self.phase}: {self.detail}" if self.detail else self.phase


@dataclass(frozen=True)
class NodeStatus:
    """One node's status.json; `error` is about its request, not about what it runs.

    `serve` is the first replica; `replicas` are all of them, where there are several.

    It is written again at least every `beat` seconds; a node program of an earlier version did not do that.
    """

    role: Literal["head", "worker"]
    updated: Number
    # An earlier version's key is the name of the one backend there was.
    group: GroupStatus = field(metadata={ALSO: "ray"})
    serve: ServeStatus | None
    error: Words | None = None
    beat: Number | None = None
    # A node program of an earlier version keeps none.
    roll: Roll | None = None
    replicas: tuple[ServeStatus, ...] = ()

    def __post_init__(self) -> None:
        """Refuse more than a cluster may have.

        Raises:
            ValueError: its replicas have ranks on more hosts.
        """
        if sum(len(one.ranks) for one in self.replicas) > MAX_OF_ALL:
            raise ValueError(f"has ranks on more than {MAX_OF_ALL} hosts")

    @property
    def serves(self) -> tuple[ServeStatus, ...]:
        """Each replica that is served, also where there is one alone."""
        return self.replicas or tuple(filter(None, (self.serve,)))
