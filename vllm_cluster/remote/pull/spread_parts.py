"""What the transfer from host to host needs of the plan and of the store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, TypeAlias

if TYPE_CHECKING:
    from hashlib import _Hash


class SpreadHost(Protocol):
    """A host of the chain, by its private address and the pinned port."""

    @property
    def name(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def port(self) -> int: ...


class SpreadFile(Protocol):
    """A file to bring; `blob` is its sha256 (64 digits) or its git blob id (40)."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def blob(self) -> str: ...


class SpreadPlan(Protocol):
    """The hosts in the order of the chain, the source first, and the files."""

    @property
    def key(self) -> str: ...
    @property
    def me(self) -> str: ...
    @property
    def hosts(self) -> Sequence[SpreadHost]: ...
    @property
    def files(self) -> Sequence[SpreadFile]: ...


class SpreadStore(Protocol):
    """The files on this host's disk."""

    def have(self, file: SpreadFile, /) -> int:
        """Return how many bytes from the beginning can be read now."""

    def open(self, file: SpreadFile, /) -> BinaryIO:
        """Open what is there, whole or partial."""

    def complete(self, file: SpreadFile, /) -> bool:
        """Return whether the file is whole, verified and in its place."""

    def partial(self, file: SpreadFile, /) -> Path:
        """Return where a receiver writes; files of the same content share it."""

    def finish(self, file: SpreadFile, /) -> None:
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


def host_of(plan: SpreadPlan, name: str) -> SpreadHost:
    """Return the host of that name."""
    return next(host for host in plan.hosts if host.name == name)


def new_hash(file: SpreadFile) -> _Hash:
    """Return the beginning of a file's hash: sha256, or git's id of a blob, which the hub has for small files."""
    if len(file.blob) == 64:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
