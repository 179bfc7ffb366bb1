"""Hosts of a pull for tests: a folder as the store, and the plan that all of them have."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from vllm_cluster.remote.pull.plan import ChainHost, PulledFile

KEY = "5a" * 32


@dataclass(frozen=True)
class FolderPlan:
    """What a host of a pull knows."""

    key: str
    me: str
    hosts: Sequence[ChainHost]
    files: Sequence[PulledFile]

    def write(self, path: Path) -> Path:
        """Write it, for a host in a process of its own."""
        path.write_text(json.dumps(asdict(self)))
        return path


def read_plan(path: Path) -> FolderPlan:
    """Read what `write` wrote."""
    row = json.loads(path.read_text())
    hosts = [ChainHost(**host) for host in row["hosts"]]
    return FolderPlan(row["key"], row["me"], hosts, [PulledFile(**file) for file in row["files"]])


class FolderStore:
    """Files in a folder; partial ones have a name of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, file: PulledFile) -> Path:
        return self.folder / file.path

    def have(self, file: PulledFile, /) -> int:
        for path in (self._path(file), self.partial(file)):
            try:
                return path.stat().st_size
            except FileNotFoundError:
                continue
        return 0

    def open(self, file: PulledFile, /) -> BinaryIO:
        try:
            return self._path(file).open("rb")
        except FileNotFoundError:
            return self.partial(file).open("rb")

    def complete(self, file: PulledFile, /) -> bool:
        return self._path(file).exists()

    def partial(self, file: PulledFile, /) -> Path:
        return self.folder / f"{file.blob}.part"

    def blob(self, file: PulledFile, /) -> str:
        return file.blob

    def learn(self, file: PulledFile, blob: str, /) -> None:
        raise NotImplementedError

    def finish(self, file: PulledFile, /) -> None:
        if self.partial(file).exists():
            self.partial(file).replace(self._path(file))
        else:
            twin = next(path for path in self.folder.glob("*.json") if git_blob(path.read_bytes()) == file.blob)
            self._path(file).hardlink_to(twin)


def git_blob(content: bytes) -> str:
    """The id that git gives to content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def planned(path: str, content: bytes, *, git: bool = False) -> PulledFile:
    """The row of a file in the plan."""
    return PulledFile(path, len(content), git_blob(content) if git else hashlib.sha256(content).hexdigest())


def random_files(folder: Path, count: int, size: int) -> list[PulledFile]:
    """Write files with random content, and return their rows."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for index in range(count):
        content = os.urandom(size)
        (folder / f"{index}.safetensors").write_bytes(content)
        rows.append(planned(f"{index}.safetensors", content))
    return rows


def free_ports(count: int) -> list[int]:
    """Ports of loopback that were free a moment ago."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def plan_of(count: int, files: Sequence[PulledFile]) -> FolderPlan:
    """A plan for h0, the source, and the others on loopback."""
    hosts = [ChainHost(f"h{index}", "127.0.0.1", port) for index, port in enumerate(free_ports(count))]
    return FolderPlan(KEY, "h0", hosts, files)


class GrowingStore(FolderStore):
    """The store of a source that downloads: of each file there is so much yet."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.arrived = 0

    def have(self, file: PulledFile, /) -> int:
        return min(self.arrived, super().have(file))

    def complete(self, file: PulledFile, /) -> bool:
        return self.arrived >= file.size and super().complete(file)


class DamagingStore(FolderStore):
    """The store of a host whose memory turns a bit of the first file, as often as it is given."""

    def __init__(self, folder: Path, times: int) -> None:
        super().__init__(folder)
        self.times = times

    def open(self, file: PulledFile, /) -> BinaryIO:
        there = super().open(file)
        if not file.path.startswith("0.") or not self.times:
            return there
        self.times -= 1
        copy = tempfile.TemporaryFile()  # noqa: SIM115
        with there:
            content = bytearray(there.read())
        content[:1] = bytes([content[0] ^ 1])
        copy.write(content)
        copy.flush()
        return copy


class FullStore(FolderStore):
    """The store of a host whose disk is full."""

    def partial(self, file: PulledFile, /) -> Path:
        return Path("/dev/full")
