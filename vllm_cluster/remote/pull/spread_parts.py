"""What the transfer from host to host needs of the plan and of the store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, TypeAlias

from vllm_cluster.remote.pull.plan import ChainHost, PulledFile

if TYPE_CHECKING:
    from hashlib import _Hash


class SpreadPlan(Protocol):
    """The hosts in the order of the chain, the source first, and the files."""

    @property
    def key(self) -> str: ...
    @property
    def me(self) -> str: ...
    @property
    def hosts(self) -> Sequence[ChainHost]: ...
    @property
    def files(self) -> Sequence[PulledFile]: ...


class SpreadStore(Protocol):
    """The files on this host's disk."""

    def have(self, file: PulledFile, /) -> int:
        """Return how many bytes from the beginning can be read now."""

    def open(self, file: PulledFile, /) -> BinaryIO:
        """Open what is there, whole or partial."""

    def complete(self, file: PulledFile, /) -> bool:
        """Return whether the file is whole, verified and in its place."""

    def partial(self, file: PulledFile, /) -> Path:
        """Return where a receiver writes; files of the same content share it."""

    def blob(self, file: PulledFile, /) -> str:
        """Return the hash that the file must have; empty where this host has not learned it yet."""

    def learn(self, file: PulledFile, blob: str, /) -> None:
        """Keep the hash of a file whose list has none."""

    def finish(self, file: PulledFile, /) -> None:
        """Put the verified partial, or the blob that another file has brought, in its place."""


@dataclass(frozen=True)
class SpreadProgress:
    """How far this host is, in bytes of the plan; `error` is the last one since the report before."""

    bytes: int
    upstream: str = ""
    error: str = ""


Report: TypeAlias = Callable[[SpreadProgress], None]


class SpreadError(Exception):
    """A file cannot be brought here, for a reason that no other host can remove."""


def host_of(plan: SpreadPlan, name: str) -> ChainHost:
    """Return the host of that name."""
    return next(host for host in plan.hosts if host.name == name)


def new_hash(file: PulledFile) -> _Hash:
    """Return the beginning of a file's hash: sha256, or git's id of a blob, which the hub has for small files."""
    if len(file.blob) == 40:
        return hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    return hashlib.sha256()
