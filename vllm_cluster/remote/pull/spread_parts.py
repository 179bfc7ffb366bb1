"""What the parts of the transfer from host to host share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from vllm_cluster.remote.pull.plan import ChainHost, HostPlan, PulledFile

if TYPE_CHECKING:
    from hashlib import _Hash


@dataclass(frozen=True)
class SpreadProgress:
    """How far this host is, in bytes of the plan; `error` is the last one since the report before."""

    bytes: int
    upstream: str = ""
    error: str = ""


Report: TypeAlias = Callable[[SpreadProgress], None]


class SpreadError(Exception):
    """A file cannot be brought here, for a reason that no other host can remove."""


def host_of(plan: HostPlan, name: str) -> ChainHost:
    """Return the host of that name."""
    return next(host for host in plan.hosts if host.name == name)


def new_hash(file: PulledFile) -> _Hash:
    """Return the beginning of a file's hash: sha256, or git's id of a blob, which the hub has for small files."""
    if len(file.blob) == 40:
        return hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    return hashlib.sha256()
