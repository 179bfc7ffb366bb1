"""The cluster under measurement: the program as a user runs it, and commands on its hosts over its own connections."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.inventories import load
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.hosts.connection import Fleet
from vllm_cluster.kernel.transport.base import Result

Event = dict[str, Any]

# One completion of a few tokens, as any client asks for it; prints nothing where the answer is none.
ASK = """
import json, os, sys, urllib.request
key, port, seconds = open(os.environ["VCLUSTER_API_KEY_FILE"]).read().strip(), sys.argv[1], float(sys.argv[2])
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
def ask(path, body=None):
    headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    with opener.open(urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers), timeout=seconds) as reply:
        return json.load(reply)
name = ask("/v1/models")["data"][0]["id"]
body = {"model": name, "prompt": "The cluster is", "max_tokens": 4, "ignore_eos": True}
print(name, ask("/v1/completions", json.dumps(body).encode())["usage"]["completion_tokens"])
"""

# Sends a signal to what has a pattern in its command line, itself left out; prints how many there were. Not every
# image has ps.
KILL = """
import os, pathlib, re, sys
pattern, number, most = re.compile(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
found = []
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    pid = int(path.parent.name)
    try:
        words = path.read_bytes().replace(b"\\0", b" ").decode(errors="replace")
    except OSError:
        continue
    if pattern.search(words) and pid not in (1, os.getpid()):
        found.append(pid)
for pid in found[:most]:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
print(len(found))
"""


KILLED = 137


class Failed(Exception):
    """A step could not be done; the text goes into the report."""


@dataclass(frozen=True)
class Run:
    """One call of the program: its exit code, events or document, and seconds."""

    argv: tuple[str, ...]
    code: int
    events: tuple[Event, ...]
    stderr: str
    seconds: float
    began: float

    def ok(self) -> Run:
        """Itself, if it has done what it was asked for.

        Raises:
            Failed: with what it printed.
        """
        if self.code:
            raise Failed(f"vcluster {shlex.join(self.argv)}: exit {self.code}: {self.failure}")
        return self

    @property
    def failure(self) -> str:
        """The error, or the last words."""
        error = next((event for event in self.events if event.get("event") == "error"), None)
        return str(error["message"]) if error else self.stderr.strip()[-600:]

    def phases(self) -> list[tuple[str, float]]:
        """What went on and for how long, in seconds, by the events of phases and of progress."""
        told = [event for event in self.events if event.get("event") in ("phase", "progress", "warning")]
        ends = [event["time"] for event in told[1:]] + [self.began + self.seconds]
        return [(str(e["message"]), round(end - e["time"], 2)) for e, end in zip(told, ends, strict=True)]


class Cluster:
    """An inventory, its hosts, and the program."""

    def __init__(self, inventory: Path, fleet: Fleet) -> None:
        self.path, self._fleet = inventory, fleet
        self.inventory = load(inventory)
        self.head = self.inventory.head_name
        self.worker = list(self.inventory.hosts)[-1]
        self.node = f"vcluster-{self.inventory.cluster}"

    def vcluster(self, *argv: str, seconds: float = 900.0) -> Run:
        """Run the program with --json; `argv` may hold flags for vLLM behind "--"."""
        at = argv.index("--") if "--" in argv else len(argv)
        words = [*argv[:at], "-i", str(self.path), "--json", *argv[at:]]
        began, clock = time.time(), time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, "-m", "vllm_cluster", *words],
                capture_output=True, text=True, check=False, timeout=seconds, stdin=subprocess.DEVNULL,
                env={**os.environ, "NO_COLOR": "1"},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Failed(f"vcluster {shlex.join(argv)} did not end within {seconds:.0f} s") from None
        events = tuple(json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
        return Run(argv, done.returncode, events, done.stderr, round(time.monotonic() - clock, 2), began)

    def on(self, host: str, *argv: str, seconds: float = 60.0) -> Result:
        """Run a command on a host."""
        return self._fleet.connections[host].transport.run(argv, Deadline.after(seconds))

    def inside(self, host: str, script: str, *argv: str, seconds: float = 60.0) -> Result:
        """Run a script of sh in a host's container."""
        return self.on(host, "docker", "exec", self.node, "sh", "-c", script, "sh", *argv, seconds=seconds)

    def kill(self, host: str, pattern: str, signal: int, most: int = 1000) -> int:
        """Send a signal to the processes of a host's container whose command line fits; how many there are. 0 asks."""
        argv = ["docker", "exec", self.node, "python3", "-c", KILL, pattern, str(signal), str(most)]
        said = self.on(host, *argv)
        if said.returncode == KILLED and signal:
            return 1  # the container has ended, and with it the command that did it
        if said.returncode or not said.text.strip().isdecimal():
            raise Failed(f"{host}: looking for {pattern}: {said.stderr.decode(errors='replace').strip()[-300:]}")
        return int(said.text)

    def answers(self, port: int | None = None, seconds: float = 10.0) -> str | None:
        """The name of the model that answers a completion, None where none does."""
        where = str(port or self.inventory.ports.api)
        argv = ["docker", "exec", self.node, "python3", "-c", ASK, where, str(seconds)]
        said = self.on(self.head, *argv, seconds=seconds + 20)
        return said.text.split()[0] if said.returncode == 0 and said.text.split() else None


@contextmanager
def opened(inventory: Path) -> Iterator[Cluster]:
    """The cluster, its hosts connected."""
    with Fleet(load(inventory)) as fleet:
        _, failures = fleet.connect()
        for error in failures.values():
            raise Failed(error.message)
        yield Cluster(inventory, fleet)
