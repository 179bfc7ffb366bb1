"""Hosts of a pull for tests: their plans, and stores in which something goes wrong."""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import BinaryIO

from vllm_cluster.kernel.spread.plan import write_json
from vllm_cluster.kernel.spread.store import Partial, Store
from vllm_cluster.wire.pull import ChainHost, HostPlan, ModelFile

KEY = "5a" * 32


def folder_plan(
    cache: Path,
    files: Sequence[ModelFile],
    *,
    folder: str = "mine",
    me: str = "a",
    hosts: Sequence[ChainHost] = (),
    origin: str = "",
) -> HostPlan:
    """The plan for a plain folder below the cache; without hosts, that of one alone."""
    return HostPlan(
        id="1",
        key=KEY,
        model=f"./{folder}",
        commit="",
        reference="",
        endpoint="",
        cache=str(cache),
        folder=folder,
        kind="folder",
        me=me,
        hosts=tuple(hosts) or (ChainHost("a", "127.0.0.1", 0),),
        files=tuple(files),
        origin=origin,
    )


def of_host(plan: HostPlan, name: str) -> HostPlan:
    """The plan as another host has it; its folder has its name."""
    return replace(plan, me=name, folder=name if plan.kind == "folder" else f"hub/models--{name}")


def written(plan: HostPlan, path: Path) -> Path:
    """Write a plan, for a host in a process of its own."""
    write_json(path, asdict(plan))
    return path


def git_blob(content: bytes) -> str:
    """The id that git gives to content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def planned(path: str, content: bytes, *, git: bool = False) -> ModelFile:
    """The row of a file in the plan."""
    return ModelFile(path, len(content), git_blob(content) if git else hashlib.sha256(content).hexdigest())


def random_files(folder: Path, count: int, size: int) -> list[ModelFile]:
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


def plan_of(count: int, files: Sequence[ModelFile], root: Path) -> HostPlan:
    """A plan for h0, the source, and the others on loopback, each with a folder below the root."""
    hosts = [ChainHost(f"h{index}", "127.0.0.1", port) for index, port in enumerate(free_ports(count))]
    return folder_plan(root, files, folder="h0", me="h0", hosts=hosts)


def partial_of(store: Store, file: ModelFile) -> Path:
    """Where a receiver writes a file, with the folders above it made."""
    path = store.partial(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


class GrowingStore(Store):
    """The store of a source that downloads: of each file there is so much yet."""

    arrived = 0

    def have(self, file: ModelFile) -> int:
        return min(self.arrived, super().have(file))

    def complete(self, file: ModelFile) -> bool:
        return self.arrived >= file.size and super().complete(file)


class DamagingStore(Store):
    """The store of a host whose memory turns a bit of the first file, as often as it is given."""

    def __init__(self, plan: HostPlan, times: int) -> None:
        super().__init__(plan)
        self.times = times

    def open(self, file: ModelFile) -> BinaryIO:
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


class FullStore(Store):
    """The store of a host whose disk is full."""

    def append(self, file: ModelFile) -> Partial:
        partial = super().append(file)
        full = os.open("/dev/full", os.O_RDWR)
        os.dup2(full, partial.fileno())
        os.close(full)
        return partial
