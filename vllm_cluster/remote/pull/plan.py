"""The plan of a pull, as the laptop writes it beside this program on each host."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# They arrive from a laptop, through `feed.py`.
HERE = "laptop"


class PullError(Exception):
    """The files cannot be had, for a reason that waiting does not remove."""


@dataclass(frozen=True)
class ChainHost:
    """A host of the chain, by its private address and the pinned port."""

    name: str
    address: str
    port: int


@dataclass(frozen=True)
class PulledFile:
    """A file to bring, below the snapshot; `blob` is its sha256 (64 digits) or its git blob id (40)."""

    path: str
    size: int
    blob: str


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

    @classmethod
    def read(cls, path: Path) -> HostPlan:
        """Read it from its file."""
        data = json.loads(path.read_text())
        hosts = tuple(ChainHost(**row) for row in data.pop("hosts"))
        files = tuple(PulledFile(**row) for row in data.pop("files"))
        return cls(**data, hosts=hosts, files=files)

    @property
    def total(self) -> int:
        """Return the bytes of all files."""
        return sum(file.size for file in self.files)


def write_whole(path: Path, content: dict[str, Any]) -> None:
    """Replace a JSON file so that a reader sees the old one or the new one."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    with fresh.open("w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
