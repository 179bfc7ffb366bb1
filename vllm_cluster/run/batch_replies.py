"""What the program that looks after batches on the head replies, as types: whoever may use that Docker can write it."""

from __future__ import annotations

import base64
import math
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from vllm_cluster.batch.progress import Progress, read_progress
from vllm_cluster.errors import HostError

# What a piece of its rows may unpack to, and the line that holds it.
PIECE, LINE = 1 << 20, 2 << 20
PHASES = ("", "running", "done", "stopped", "failed")
_KEY = re.compile(r"[0-9a-f]{16}")
T = TypeVar("T")


@dataclass(frozen=True)
class JobState:
    """How far a batch is: whether its program runs and all its lines are there, and what the program wrote last.

    `phase` is empty before it wrote anything; `note` is what it waits for, `error` why it failed.
    """

    running: bool
    sent: bool
    phase: str
    note: str
    error: str
    progress: Progress | None


@dataclass(frozen=True)
class JobLook:
    """A look at a batch: its state, and a piece of its rows."""

    state: JobState
    piece: bytes


@dataclass(frozen=True)
class BatchCall:
    """Who asked for a batch, when, and with which files: words for people alone."""

    user: str
    time: float
    source: str
    output: str


@dataclass(frozen=True)
class JobEntry:
    """A batch of the head by its key; `asked` is None where its first call broke off."""

    key: str
    state: JobState
    asked: BatchCall | None


def read_reply(host: str, reply: Mapping[str, Any], read: Callable[[Mapping[str, Any]], T]) -> T:
    """Read a reply of a host.

    Raises:
        HostError: it is an error, or is not what was asked for.
    """
    if "error" in reply:
        raise HostError(host, f"batch: {str(reply['error'])[:2000]}")
    try:
        return read(reply)
    except ValueError as error:
        raise HostError(host, f"batch: its reply cannot be read: {error}", hint="vcluster status") from None


def read_look(reply: Mapping[str, Any]) -> JobLook:
    """Read the reply to `look`. Raises ValueError where it is none."""
    try:
        packed = base64.b64decode(_get(reply, "data", str), validate=True)
        unpacker = zlib.decompressobj()
        piece = unpacker.decompress(packed, PIECE)
    except zlib.error as error:
        raise ValueError(f"data: {error}") from None
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise ValueError(f"data must unpack to at most {PIECE >> 20} MiB")
    return JobLook(_state(reply.get("state")), piece)


def read_size(reply: Mapping[str, Any]) -> int:
    """Read the reply to `put`. Raises ValueError where it is none."""
    return _get(reply, "size", int)


def read_entries(reply: Mapping[str, Any]) -> list[JobEntry]:
    """Read the reply to `batches`. Raises ValueError where it is none."""
    return [_entry(row) for row in _get(reply, "batches", list)]


def _entry(row: object) -> JobEntry:
    if not isinstance(row, Mapping):
        raise ValueError("a batch must be an object")
    key, asked = _get(row, "key", str), row.get("asked")
    if not _KEY.fullmatch(key):
        raise ValueError("key must be 16 hexadecimal digits")
    return JobEntry(key, _state(row.get("state")), None if asked is None else _asked(asked))


def _asked(row: object) -> BatchCall:
    if not isinstance(row, Mapping):
        raise ValueError("asked must be an object")
    moment = row.get("time")
    if isinstance(moment, bool) or not isinstance(moment, int | float) or not math.isfinite(moment):
        raise ValueError("time must be a number")
    return BatchCall(*(_get(row, "user", str), moment, _get(row, "source", str), _get(row, "output", str)))


def _state(row: object) -> JobState:
    if not isinstance(row, Mapping):
        raise ValueError("state must be an object")
    words = {name: _get(row, name, str) if name in row else "" for name in ("phase", "note", "error")}
    if words["phase"] not in PHASES:
        raise ValueError(f"phase must be one of {' '.join(PHASES[1:])}")
    progress = read_progress(row["progress"]) if "progress" in row else None
    return JobState(_get(row, "running", bool), _get(row, "sent", bool), progress=progress, **words)


def _get(row: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = row.get(name)
    if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
        raise ValueError(f"{name} must be {kind.__name__}")
    return value
