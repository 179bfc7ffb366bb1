"""What `status --watch` costs, on a cluster that serves: `python -m tests.bench.watching FOLDER` of the sandbox."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.support.hosts import Sandbox

SECONDS = 60.0
# In the command line of the program in a node, and of the docker exec that starts it.
SAMPLER, SERVER = "Prints, again and again, what a node has under load", "vllm serve "


@dataclass(frozen=True)
class Cost:
    """Percent of one core: here, on the busiest host for the samples, and there for vLLM's own /metrics."""

    here: float
    host: float
    metrics: float

    def __str__(self) -> str:
        return f"{self.here:.2f} % here, {self.host:.2f} % on a host, {self.metrics:.2f} % in vLLM on the head"


def processes(*words: str) -> list[int]:
    """The processes of this machine, and so of the hosts on it, with one of these in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if any(word in line for word in words):
            found.append(int(path.parent.name))
    return found


def used(pids: Iterable[int]) -> float:
    """The seconds of a processor that these have used so far."""
    ticks = 0
    for pid in pids:
        row = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(row[11]) + int(row[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(sandbox: Sandbox, seconds: float = SECONDS) -> Cost:
    """The cost of a watch with its own interval, after its start."""
    servers = processes(SERVER)
    before = used(servers)
    time.sleep(seconds)
    alone = used(servers) - before
    watching = sandbox.start("status", "--watch", "--json")
    try:
        assert watching.stdout is not None
        hosts = len(sandbox.vcluster("status", "--json").json()["hosts"])
        for _ in range(3):
            watching.stdout.readline()
        groups = [[watching.pid], processes(SAMPLER), servers]
        began = [used(group) for group in groups]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            watching.stdout.readline()
        took = time.monotonic() - end + seconds
        here, there, metrics = (used(group) - first for group, first in zip(groups, began, strict=True))
    finally:
        watching.terminate()
        watching.communicate(timeout=60)
    return Cost(100 * here / took, 100 * there / took / hosts, 100 * max(0.0, metrics / took - alone / seconds))


if __name__ == "__main__":
    print(measure(Sandbox(Path(sys.argv[1]))))
