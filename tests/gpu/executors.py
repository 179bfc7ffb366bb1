"""By hand, in the containers of an idle cluster: vLLM's Ray executor beside its own (`--nnodes`), on the same hosts."""

from __future__ import annotations

import re
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.gpu.bench import bench
from tests.gpu.cluster import Cluster, Failed

LOG = "/tmp/vcluster-by-hand.log"
MASTER_PORT = 29501
PORT = 8011
READY_SECONDS = 420.0
POLL = 1.0
NAME = "by-hand"
OURS = f"--served-model-name {NAME} "
# What vLLM starts changes its own name.
RANKS = r"^VLLM::|RayWorkerProc|RayWorkerWrapper"
END_SECONDS = 30.0


@dataclass(frozen=True)
class Case:
    """An executor and a layout, as `ray:tp1pp2`."""

    executor: str
    tp: int
    pp: int

    @classmethod
    def read(cls, text: str) -> Case:
        """From its name.

        Raises:
            ValueError: it is none.
        """
        found = re.fullmatch(r"(ray|mp):tp(\d+)pp(\d+)", text)
        if not found:
            raise ValueError(f"{text!r} is no case: ray:tp1pp2 or mp:tp2pp1, for one")
        return cls(found[1], int(found[2]), int(found[3]))

    def __str__(self) -> str:
        return f"{self.executor}:tp{self.tp}pp{self.pp}"


def of(hosts: int, gpus: int) -> list[str]:
    """The cases worth comparing: TP within a host and PP over hosts, and TP over all; each by both executors."""
    layouts = dict.fromkeys([(gpus, hosts), (gpus * hosts, 1)])
    return [f"{executor}:tp{tp}pp{pp}" for tp, pp in layouts for executor in ("ray", "mp")]


@dataclass
class ByHand:
    """How a model is served by hand."""

    cluster: Cluster
    model: str
    flags: Sequence[str]

    def argv(self, case: Case, rank: int) -> list[str]:
        """What one host runs."""
        sizes = ["--tensor-parallel-size", str(case.tp), "--pipeline-parallel-size", str(case.pp)]
        words = ["vllm", "serve", self.model, "--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(PORT)]
        if case.executor == "ray":
            return [*words, *sizes, "--distributed-executor-backend", "ray", *self.flags]
        hosts = self.cluster.inventory.hosts
        group = ["--nnodes", str(len(hosts)), "--node-rank", str(rank), *(["--headless"] if rank else [])]
        master = ["--master-addr", hosts[self.cluster.head].address, "--master-port", str(MASTER_PORT)]
        return [*words, *sizes, *group, *master, *self.flags]

    def hosts(self, case: Case) -> list[str]:
        """Where something is started, the head first."""
        names = sorted(self.cluster.inventory.hosts, key=lambda name: name != self.cluster.head)
        return names[:1] if case.executor == "ray" else names

    def start(self, case: Case) -> float:
        """Start it and wait for a completion; seconds.

        Raises:
            Failed: it ended, or did not answer in time.
        """
        began = time.monotonic()
        for rank, host in enumerate(self.hosts(case)):
            # No key: the port is on loopback, for some minutes. The environment is the container's.
            line = f"exec {shlex.join(self.argv(case, rank))} >{LOG} 2>&1"
            argv = ["docker", "exec", "--detach", "--env", "VLLM_NO_USAGE_STATS=1", self.cluster.node, "sh", "-c", line]
            self.cluster.on(host, *argv)
        while time.monotonic() - began < READY_SECONDS:
            if self.cluster.answers(PORT) == NAME:
                return round(time.monotonic() - began, 1)
            if not self._alive():
                raise Failed(f"{case} ended: {self.log()}")
            time.sleep(POLL)
        raise Failed(f"{case} did not answer within {READY_SECONDS:.0f} s: {self.log()}")

    def _alive(self) -> bool:
        return self.cluster.kill(self.cluster.head, OURS, 0) > 0

    def log(self, lines: int = 12) -> str:
        """The last lines on the head."""
        return self.cluster.inside(self.cluster.head, f"tail -n {lines} {LOG}").text[-1500:]

    def kv(self) -> int | None:
        """Tokens that the KV cache holds, by the log."""
        return kv_tokens(self.cluster.inside(self.cluster.head, f"grep 'KV cache size' {LOG}").text)

    def end(self) -> None:
        """End what was started, on all hosts, and wait until it has gone.

        Raises:
            Failed: something of it is left.
        """
        for number in (signal.SIGTERM, signal.SIGKILL):
            began = time.monotonic()
            for host in self.cluster.inventory.hosts:
                self.cluster.kill(host, OURS if number == signal.SIGTERM else f"{OURS}|{RANKS}", number)
            while time.monotonic() - began < END_SECONDS:
                if not (
                    left := sum(self.cluster.kill(host, f"{OURS}|{RANKS}", 0) for host in self.cluster.inventory.hosts)
                ):
                    return
                time.sleep(POLL)
        raise Failed(f"{left} processes of vLLM do not end")


def kv_tokens(log: str) -> int | None:
    """The tokens of the KV cache, of the last line that has them."""
    found = re.findall(r"KV cache size: ([\d,]+) tokens", log)
    return int(found[-1].replace(",", "")) if found else None


def compare(
    by_hand: ByHand,
    cases: Sequence[str],
    at_once: Sequence[int],
    rounds: int,
    tokens: int,
    *,
    left: Callable[[], float],
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each case in turn: seconds to ready, KV cache, and every round's figures; none begins with no time left."""
    for name in cases:
        case = Case.read(name)
        if left() < 60:
            yield name, {"skipped": "no time was left"}
            continue
        figures: dict[str, Any] = {"rounds": []}
        try:
            by_hand.end()
            figures["ready_seconds"] = by_hand.start(case)
            figures["kv_tokens"] = by_hand.kv()
            for _ in range(rounds):
                for number in at_once:
                    if left() < 20:
                        figures["broken_off"] = "no time was left"
                        break
                    found = bench(by_hand.cluster, by_hand.model, NAME, number, tokens=tokens, port=PORT)
                    figures["rounds"].append(found)
        except Failed as error:
            figures["failed"] = str(error)
        finally:
            by_hand.end()
        yield name, figures
