"""The plan of a pull, as the laptop writes it beside this program on each host."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hashlib import _Hash

# They arrive from a laptop, through `feed.py`.
HERE = "laptop"
MAX_SIZE = 10 * 1000**4


class PullError(Exception):
    """The files cannot be had, for a reason that neither waiting nor another host removes."""


def ensure(holds: object, what: str) -> None:
    """Refuse a plan in which something is not what it must be: the program that writes trusts no other to look.

    Raises:
        PullError: it does not hold.
    """
    if not holds:
        raise PullError(f"the plan has {what}")


def is_inside(path: str) -> bool:
    """Return whether a relative path leads nowhere but down."""
    return path.isprintable() and not {"", ".", ".."} & {*path.split("/")}


@dataclass(frozen=True)
class ChainHost:
    """A host of the chain, by its private address and the pinned port."""

    name: str
    address: str
    port: int

    def __post_init__(self) -> None:
        ipaddress.ip_address(self.address)
        ensure(0 <= self.port < 1 << 16, f"port {self.port}")


@dataclass(frozen=True)
class PulledFile:
    """A file to bring, below the snapshot; `blob` is its sha256 (64 digits) or its git blob id (40)."""

    path: str
    size: int
    blob: str

    def __post_init__(self) -> None:
        ensure(is_inside(self.path), f"a file that cannot be: {self.path[:80]!a}")
        ensure(type(self.size) is int and 0 <= self.size <= MAX_SIZE, f"a size that cannot be: {self.size!r:.40}")
        ensure(re.fullmatch("[0-9a-f]{40}([0-9a-f]{24})?", self.blob), f"no hash of a file: {self.blob[:80]!a}")


@dataclass(frozen=True)
class HostPlan:
    """What is pulled, and by which hosts, the source first. `folder` is below the cache; sizes are in bytes.

    `reference` is the branch or tag that points to the commit once all is there; empty where a commit was named.
    `endpoint` is the hub from which the source downloads, `origin` what it has them from else: `HERE`, or a
    folder of this host; both are empty where it has all files.
    """

    id: str
    key: str
    model: str
    commit: str
    reference: str
    endpoint: str
    cache: str
    folder: str
    kind: str
    me: str
    hosts: tuple[ChainHost, ...]
    files: tuple[PulledFile, ...]
    origin: str = ""

    def __post_init__(self) -> None:
        hub = self.kind == "hub"
        ensure(re.fullmatch("[0-9a-f]{40}" if hub else "", self.commit), f"no commit: {self.commit[:80]!a}")
        ensure(is_inside(self.folder), f"a folder that cannot be: {self.folder[:80]!a}")
        ensure(
            self.folder.startswith("hub/models--") and self.folder.count("/") == 1
            if hub
            else self.folder.split("/")[0] != "hub",
            f"a folder that cannot be: {self.folder[:80]!a}",
        )
        ensure(not self.reference or is_inside(self.reference), f"no revision: {self.reference[:80]!a}")
        ensure(re.fullmatch("[0-9a-f]{64}", self.key), "no key")

    @classmethod
    def read(cls, path: Path) -> HostPlan:
        """Read it from its file."""
        data = json.loads(path.read_text())
        hosts = tuple(ChainHost(**row) for row in data.pop("hosts"))
        files = tuple(PulledFile(**row) for row in data.pop("files"))
        return cls(**data, hosts=hosts, files=files)

    def host(self, name: str) -> ChainHost:
        """Return the host of that name."""
        return next(host for host in self.hosts if host.name == name)

    @property
    def total(self) -> int:
        """Return the bytes of all files."""
        return sum(file.size for file in self.files)


def new_hash(file: PulledFile) -> _Hash:
    """Return the beginning of a file's hash: sha256, or git's id of a blob, which the hub has for small files."""
    if len(file.blob) == 40:
        return hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    return hashlib.sha256()


def write_whole(path: Path, content: dict[str, Any]) -> None:
    """Replace a JSON file so that a reader sees the old one or the new one."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    with fresh.open("w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
