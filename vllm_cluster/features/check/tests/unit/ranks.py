"""Hosts whose ranks are made up: they speak as features/check/on_host/allreduce.py does, and fail as a test wants."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.docker.client import DockerApi
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.transport.base import Transport

# What a group of hosts does, under these variables: come to its end, hang in the first all-reduce, or fail.
Fate = Callable[[frozenset[str], Mapping[str, str]], str]


@dataclass
class Ranks:
    """All hosts at once, since only together ranks come to an end."""

    fate: Fate
    speed: int | None = 100_000
    bus: Callable[[frozenset[str]], float] = lambda hosts: 10.0
    log: Sequence[str] = ()
    streams: dict[str, Stream] = field(default_factory=dict)
    bodies: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    here: dict[int, dict[int, str]] = field(default_factory=dict)
    running: dict[int, set[int]] = field(default_factory=dict)

    def order(self, host: str, order: Mapping[str, Any]) -> None:
        """What a host does with an order."""
        if "stop" in order:
            for rank in sorted(self.running.get(order["stop"], ())):
                if self.here[order["stop"]][rank] == host:
                    self._end(order["stop"], rank, -9)
            return
        trial, ranks = order["trial"], self.here.setdefault(order["trial"], {})
        for rank in map(int, order["ranks"]):
            ranks[rank] = host
            self.running.setdefault(trial, set()).add(rank)
            self._send(trial, rank, step="started")
            self._send(trial, rank, step="store", port=4711)
        if len(ranks) == order["world"]:
            self._go(trial, order)

    def _go(self, trial: int, order: Mapping[str, Any]) -> None:
        ranks, hosts = self.here[trial], frozenset(self.here[trial].values())
        fate, world = self.fate(hosts, order["environment"]), order["world"]
        for rank in sorted(ranks):
            self._send(trial, rank, step="joined")
            if fate == "fails":
                self._send(trial, rank, step="failed", error="unhandled system error")
                self._end(trial, rank, 1)
            elif fate == "works":
                for size in order["sizes"]:
                    took = 2 * (world - 1) / world * size / self.bus(hosts) / 1e9
                    self._send(trial, rank, step="size", bytes=size, seconds=took, right=True)
                self._send(trial, rank, step="done")
                self._end(trial, rank, 0)

    def _end(self, trial: int, rank: int, code: int) -> None:
        for line in self.log:
            self._send(trial, rank, log=line)
        self.running[trial].discard(rank)
        self._send(trial, rank, step="ended", code=code)

    def _send(self, trial: int, rank: int, **row: Any) -> None:
        self.streams[self.here[trial][rank]].sent.put(json.dumps({"trial": trial, "rank": rank, **row}).encode())

    def fleet(self, inventory: Inventory) -> Fleet:
        """The hosts as the product sees them."""
        fleet = Fleet(inventory)
        for name in inventory.hosts:
            host = _Host(name, self)
            fleet.connections[name] = HostConnection(name, cast(Transport, host))
            fleet.connections[name]._docker_api = cast(DockerApi, host)
        fleet.without_lease()
        return fleet


class Stream:
    """The way to one host's program."""

    def __init__(self, host: str, ranks: Ranks) -> None:
        self.sent: queue.Queue[bytes] = queue.Queue()
        self._host, self._ranks, self._seconds = host, ranks, 0.0
        self.sent.put(json.dumps({"ready": True, "torch": "2.11.0", "speed": ranks.speed}).encode())

    def settimeout(self, seconds: float | None) -> None:
        """How long recv waits."""
        self._seconds = seconds or 0.0

    def sendall(self, data: bytes) -> None:
        """Orders."""
        for line in data.splitlines():
            self._ranks.order(self._host, json.loads(line))

    def recv(self, _size: int) -> bytes:
        """The next line."""
        try:
            line = self.sent.get(timeout=self._seconds)
        except queue.Empty:
            raise TimeoutError from None
        return line + b"\n" if line else b""

    def stderr_tail(self) -> str:
        """What Docker printed."""
        return "the container went away"

    def exit_code(self) -> int:
        """It was killed."""
        return 137

    def close(self) -> None:
        """The end of what is reported."""
        self.sent.put(b"")


class _Host:
    """A host's connection and its Docker engine."""

    def __init__(self, name: str, ranks: Ranks) -> None:
        self.host, self._ranks = name, ranks

    def without_idle(self) -> AbstractContextManager[None]:
        return nullcontext()

    def open_stream(self, argv: Sequence[str], _deadline: Deadline) -> Stream:
        assert list(argv[:2]) == ["docker", "start"] and argv[-1] in self._ranks.bodies
        self._ranks.streams[self.host] = Stream(self.host, self._ranks)
        return self._ranks.streams[self.host]

    def create(self, name: str, body: Mapping[str, Any]) -> str:
        self._ranks.bodies[name] = body
        return name

    def remove(self, name: str, grace: int) -> None:
        self._ranks.removed.append(name)

    def close(self) -> None:
        """Nothing to end."""
