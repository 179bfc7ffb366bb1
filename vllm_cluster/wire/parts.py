"""What a head asks of each node of a replica, and what the node reports of it: the parts, as they run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

from vllm_cluster.wire.order import Part
from vllm_cluster.wire.roll import MAX_GPUS
from vllm_cluster.wire.status import Lines, Phase
from vllm_cluster.wire.values import (
    Address,
    Count,
    Line,
    Name,
    Number,
    Port,
    ServedName,
    at_most,
    between,
    brief,
    first,
    one_line,
    shaped,
)

# Of one start of a replica, on every node of it.
RunId = Annotated[str, shaped("[0-9a-f]{16}", "the id of a start")]

# In the head's state, written by `up`.
REPLACING, MAX_REPLACING = "replacing.json", 64 << 10
# The hosts of an inventory, and as many that left it.
RECORD_FILE, MAX_MEMBERS = "cluster.json", 512

# A node has 16 GPUs, or seven parts of each, and what has not ended yet.
MAX_PARTS = 256

# A start that is stuck has processes that run, whose stacks are worth writing down.
EndKind = Literal["", "asked", "failed", "stuck"]

# The head keeps what any node reports of any replica, in the one status that every command reads.
Short = Annotated[str, one_line, brief(1000)]


@dataclass(frozen=True)
class PartOrder:
    """A part that shall run, or that shall end: it was `asked` for, or the start has `failed`, or is `stuck`.

    `index` is that of its replica, `several` whether others may run beside it.

    `api` is where the part that leads answers, and is watched; the others have none.
    """

    id: RunId
    name: ServedName
    model: ServedName
    part: Part
    api: tuple[Address, Port] | None = None
    ending: EndKind = ""
    index: Count = 0
    several: bool = False


@dataclass(frozen=True)
class PartReport:
    """A part as it runs; `code` is how it ended, and `left` are the processes that have not, also after that.

    `over` is where nothing of it is left, or will not end. `cause` and `lines` are there once it ends. The rest is
    known of the part that leads: how far its start is, and what is wrong with its answers (`verdict`).
    """

    id: RunId
    code: int | None = None
    over: bool = False
    left: Annotated[tuple[Count, ...], first(64)] = ()
    cause: Short = ""
    lines: Lines = ()
    maybe_lost: bool = False
    phase: Phase = "importing"
    detail: Short = ""
    verdict: Short = ""
    progress: tuple[Count, Count] | None = None
    phases: Annotated[tuple[tuple[Short, Number], ...], first(64)] = ()
    last_line: Short = ""
    token_age: Number | None = None


@dataclass(frozen=True)
class Beat:
    """The head's sign of life, with the parts that the node shall run or end; or why the node is refused."""

    refused: Line = ""
    parts: tuple[PartOrder, ...] = ()


@dataclass(frozen=True)
class NodeBeat:
    """A node's sign of life, with the parts that it has."""

    parts: Annotated[tuple[PartReport, ...], first(MAX_PARTS)] = ()


@dataclass(frozen=True)
class Replacing:
    """The nodes, by address, that a run of a person makes again: what ends with them has not failed."""

    run: RunId
    by: Line
    addresses: tuple[Address, ...]

    @property
    def document(self) -> bytes:
        """Return the content of the file."""
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True)
class CountedMember:
    """What the head's program takes of a member of the cluster; of one that is `leaving` no GPU is waited for."""

    name: Name
    address: Address
    gpus: Annotated[int, between(0, MAX_GPUS)]
    leaving: bool = False


@dataclass(frozen=True)
class CountedMembers:
    """What the head's program takes of the record of members."""

    members: Annotated[tuple[CountedMember, ...], at_most(MAX_MEMBERS)]
