"""What the program that looks after batches on the head replies, as types: whoever may use that Docker can write it."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

from vllm_cluster.features.batch.on_head.progress import Progress
from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.hosts.program import Message
from vllm_cluster.wire.reading import RefusedDocument, convert
from vllm_cluster.wire.values import Number, shaped

# What a piece of its rows may unpack to, and the line that holds it.
PIECE, LINE = 1 << 20, 2 << 20
T = TypeVar("T")


class BegunAgain(HostError):
    """What is there now is of another call, which has begun the batch again since it was looked at."""

    code = "batch-begun-again"


@dataclass(frozen=True)
class JobState:
    """How far a batch is: whether its program runs and all its lines are there, and what the program wrote last.

    `phase` is empty before it wrote anything; `note` is what it waits for, `error` why it failed. `id` is new each time
    that it is begun, and empty where an earlier version began it.
    """

    running: bool
    sent: bool
    phase: Literal["", "running", "done", "stopped", "failed"] = ""
    note: str = ""
    error: str = ""
    progress: Progress | None = None
    id: Annotated[str, shaped("(?:[0-9a-f]{32})?", "the id of a batch")] = ""


@dataclass(frozen=True)
class JobLook:
    """A look at a batch: its state, and a piece of its rows."""

    state: JobState
    piece: bytes


@dataclass(frozen=True)
class BatchCall:
    """Who asked for a batch, when, and with which files: words for people alone."""

    user: str
    time: Number
    source: str
    output: str


@dataclass(frozen=True)
class JobEntry:
    """A batch of the head by its key; `asked` is None where its first call broke off."""

    key: Annotated[str, shaped("[0-9a-f]{16}", "the key of a batch")]
    state: JobState
    asked: BatchCall | None


def read_reply(host: str, reply: Message, read: Callable[[Message], T]) -> T:
    """Read a reply of a host.

    Raises:
        BegunAgain: the batch is another one than was asked about.
        HostError: it is an error, or is not what was asked for.
    """
    if "error" in reply:
        kind = BegunAgain if reply.get("begun_again") is True else HostError
        raise kind(host, f"batch: {str(reply['error'])[:2000]}", hint="vcluster batch --list")
    try:
        return read(reply)
    except ValueError as error:
        why = f"{error.field} {error.why}".strip() if isinstance(error, RefusedDocument) else error
        raise HostError(host, f"batch: its reply cannot be read: {why}", hint="vcluster status") from None


def read_look(reply: Message) -> JobLook:
    """Read the reply to `look`. Raises ValueError where it is none."""
    try:
        packed = base64.b64decode(_get(reply, "data", str), validate=True)
        unpacker = zlib.decompressobj()
        piece = unpacker.decompress(packed, PIECE)
    except zlib.error as error:
        raise ValueError(f"data: {error}") from None
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise ValueError(f"data must unpack to at most {PIECE >> 20} MiB")
    return JobLook(convert(JobState, reply.get("state"), "state"), piece)


def read_size(reply: Message) -> int:
    """Read the reply to `put`. Raises ValueError where it is none."""
    return _get(reply, "size", int)


def read_entries(reply: Message) -> tuple[JobEntry, ...]:
    """Read the reply to `batches`. Raises ValueError where it is none."""
    return tuple(convert(JobEntry, row, "batches") for row in _get(reply, "batches", list))


def _get(row: Message, name: str, kind: type[T]) -> T:
    value = row.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{name} must be {kind.__name__}")
    return value
