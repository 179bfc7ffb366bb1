"""What a verb takes from its machine: a clock that counts time asleep, and one question to ssh for each host."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support import world
from vllm_cluster.kernel.clock import Deadline, SystemClock
from vllm_cluster.kernel.errors import InventoryError, Unreachable
from vllm_cluster.kernel.hosts.connection import Fleet
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.transport import Kind
from vllm_cluster.kernel.transport.base import Target, Transport
from vllm_cluster.kernel.transport.jumps import Jumps
from vllm_cluster.kernel.transport.ssh_config import SshEndpoint
from vllm_cluster.serving.head import at_head


def kernel(clock: int) -> float:
    """A kernel that was suspended for an hour: only the clock that stops in sleep stayed behind."""
    stops_asleep = time.CLOCK_MONOTONIC if sys.platform == "linux" else 8  # CLOCK_UPTIME_RAW of macOS
    return 100.0 if clock == stops_asleep else 3700.0


# fault: kernel/clock.py: BOOT_CLOCK = time.CLOCK_BOOTTIME → BOOT_CLOCK = time.CLOCK_MONOTONIC
def test_time_asleep_counts() -> None:
    clock = SystemClock(kernel)
    assert clock.monotonic() == 3700.0
    assert Deadline(200.0, clock).left() == 0.0


def test_a_repeated_call_ends_when_asked_or_raises() -> None:
    done, times = threading.Event(), list[int]()

    def work() -> bool:
        times.append(1)
        done.set()
        return len(times) < 2

    twice = SYSTEM.repeat(work, 0.01, "twice")
    twice.join(10)
    assert (len(times), twice.is_alive()) == (2, False)
    done.clear()

    def again() -> bool:
        done.set()
        return True

    endless = SYSTEM.repeat(again, 0.01, "endless")
    assert done.wait(10)
    endless.stop()
    endless.join(10)
    assert not endless.is_alive()


def asked(ends: dict[str, str]) -> tuple[Runtime, list[str]]:
    """A machine whose ssh sends each host to its end, and what it was asked."""
    questions: list[str] = []

    def ssh(argv: Sequence[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        questions.append(argv[-1])
        return subprocess.CompletedProcess(argv, 0, f"user me\nhostname {ends[argv[-1]]}\nport 1\n".encode(), b"")

    return replace(SYSTEM, processes=ssh), questions


# fault: kernel/hosts/connection.py: found.get(name) → None
def test_ssh_is_asked_once_for_each_host() -> None:
    runtime, questions = asked({"gpu1": "127.0.0.1", "gpu2": "127.0.0.2"})
    endpoints: dict[str, str] = {}

    def connect(target: Target, kind: Kind, endpoint: SshEndpoint | None, jumps: Jumps) -> Transport:
        endpoints[target.name] = endpoint.host if endpoint else ""
        return SYSTEM.connect(target, kind, endpoint, jumps)

    with Fleet(world.inventory(2), replace(runtime, connect=connect)) as fleet:
        _, failures = fleet.connect()  # to a port of this machine that turns them away
    assert endpoints == {"gpu1": "127.0.0.1", "gpu2": "127.0.0.2"}
    assert sorted(failures) == sorted(questions) == ["gpu1", "gpu2"]


# fault: serving/head.py: Fleet(inventory, runtime, [inventory.head_name]) → Fleet(inventory, runtime)
def test_a_verb_of_the_head_asks_ssh_for_the_head_alone() -> None:
    inventory = world.inventory(8)
    runtime, questions = asked(dict.fromkeys(inventory.hosts, "127.0.0.1"))
    with pytest.raises(Unreachable), at_head(inventory, runtime):
        pass
    assert questions == ["gpu1"]


# fault: kernel/hosts/connection.py: _ensure_unique_hosts(inventory, found) →
def test_no_verb_takes_one_machine_twice() -> None:
    runtime, _ = asked({"gpu1": "127.0.0.1", "gpu2": "127.0.0.1"})
    with pytest.raises(InventoryError, match=r"hosts\.gpu2: reaches 127\.0\.0\.1 port 1, as hosts\.gpu1"):
        Fleet(world.inventory(2), runtime)
