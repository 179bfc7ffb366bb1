"""Rounds of `vllm bench serve` in the head's container, at the front or at an engine's own port."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.gpu.cluster import Cluster, Failed

KEYS = ("output_throughput", "median_ttft_ms", "median_tpot_ms", "p99_ttft_ms", "completed", "failed")
SECONDS = 600.0

# Every round after one import, since vLLM's takes longer than a round. A client reads about as many tokens as one
# engine gives: where engines are compared, several share the requests, and their throughputs are added.
ROUNDS = """
import argparse, contextlib, json, multiprocessing, os, sys
from vllm.benchmarks.serve import add_cli_args, main
ADDED = ("output_throughput", "completed", "failed")
def client(spec):
    key = spec.pop("key_file")
    os.environ["OPENAI_API_KEY"] = open(key).read().strip() if key else "none"
    parser = argparse.ArgumentParser()
    add_cli_args(parser)
    args = parser.parse_args([*(f"--{k}={v}" for k, v in spec.items()), "--ignore-eos", "--disable-tqdm"])
    with contextlib.redirect_stdout(sys.stderr):
        found = main(args)
    return {k: v for k, v in found.items() if isinstance(v, (int, float))}
for specs in json.loads(sys.argv[1]):
    with multiprocessing.get_context("fork").Pool(len(specs)) as pool:
        found = pool.map(client, specs, chunksize=1)
    row = {k: (sum if k in ADDED else max)(each.get(k, 0) for each in found) for k in found[0]}
    print("ROUND", json.dumps(row), flush=True)
"""

# Where an engine listens itself, and the key that it wants, from its process. One of several replicas listens on its
# host's address alone.
ENGINE = """
import pathlib
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    words = path.read_bytes().decode(errors="replace").split("\\0")
    if "serve" not in words[:4] or "--headless" in words:
        continue
    def said(name):
        given = next((w.partition("=")[2] for w in words if w.startswith(name + "=")), "")
        return given or (words[words.index(name) + 1] if name in words else "")
    env = dict(pair.split("=", 1) for pair in (path.parent / "environ").read_text().split("\\0") if "=" in pair)
    if said("--port"):
        print(said("--port"), said("--host") or "127.0.0.1", env.get("VCLUSTER_API_KEY_FILE", ""))
"""

# Seconds of processor time so far of each process of the container, by what it is called and its pid.
BUSY = """
import json, os, pathlib
found = {}
for path in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        words = (path / "cmdline").read_bytes().replace(b"\\0", b" ").decode(errors="replace").strip()
        ticks = (path / "stat").read_text().rpartition(")")[2].split()[11:13]
    except OSError:
        continue
    if words:
        found[f"{words[:70]} [{path.name}]"] = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Way:
    """Where requests go from a host's container: a port, the file with the key, if it wants one, and the address."""

    port: int
    key_file: str
    address: str = "127.0.0.1"


@dataclass
class Rounds:
    """Each round has prompts of its own: a prefix cache holds those of the one before."""

    cluster: Cluster
    model: str
    clients: int = 1
    seed: int = 0

    def front(self) -> Way:
        """The API as clients have it."""
        return Way(self.cluster.inventory.ports.api, self._own_key(self.cluster.head))

    def engine(self, host: str) -> Way:
        """The port of a host's own engine.

        Raises:
            Failed: it has none.
        """
        found = self.cluster.on(host, "docker", "exec", self.cluster.node, "python3", "-c", ENGINE)
        port, _, rest = found.text.strip().partition("\n")[0].partition(" ")
        if not port.isdecimal():
            raise Failed(f"no engine found on {host}: {found.text}")
        address, _, key = rest.partition(" ")
        return Way(int(port), key or self._own_key(host), "127.0.0.1" if address == "0.0.0.0" else address)

    def _own_key(self, host: str) -> str:
        return self.cluster.inside(host, 'printf %s "$VCLUSTER_API_KEY_FILE"').text.strip()

    def spec(self, way: Way, load: int, prompts: int, **dataset: Any) -> list[dict[str, Any]]:
        """One round of so many open requests, a part a client; `dataset` is as vLLM has it, _ for -."""
        more = {name.replace("_", "-"): value for name, value in dataset.items()}
        parts = []
        for _ in range(self.clients):
            self.seed += 1
            parts.append({
                "key_file": way.key_file, "model": self.model, "host": way.address, "port": way.port,
                "seed": self.seed, "max-concurrency": load // self.clients, "num-prompts": prompts // self.clients,
                **more,
            })  # fmt: skip
        return parts

    def random(
        self, way: Way, load: int, prompts: int, tokens: int, spread: float = 0.0, *, paced: bool = False
    ) -> list[dict[str, Any]]:
        """One round of random prompts with so many tokens, as many out; lengths differ by the share of `spread`.

        All that are open at once begin at once; `paced`, within about a second.
        """
        more = {"random_input_len": tokens, "random_output_len": tokens, "random_range_ratio": spread}
        rate = {"request_rate": load // self.clients} if paced else {}
        return self.spec(way, load, prompts, dataset_name="random", **more, **rate)

    def busy(self, host: str) -> dict[str, float]:
        """Seconds of processor time so far of each process in a host's container."""
        return dict(json.loads(self.cluster.on(host, "docker", "exec", self.cluster.node, "python3", "-c", BUSY).text))

    def run(self, specs: Sequence[list[dict[str, Any]]], host: str | None = None) -> list[dict[str, Any]]:
        """Run them one after the other on a host, the head; vLLM's figures of each.

        Raises:
            Failed: not all of them ended.
        """
        argv = ["docker", "exec", self.cluster.node, "python3", "-c", ROUNDS, json.dumps(specs)]
        done = self.cluster.on(host or self.cluster.head, *argv, seconds=SECONDS)
        rounds = [json.loads(line[6:]) for line in done.text.splitlines() if line.startswith("ROUND ")]
        if len(rounds) != len(specs):
            raise Failed(f"{len(rounds)} of {len(specs)} rounds: {done.stderr.decode(errors='replace')[-1200:]}")
        return rounds

    def measure(self, plan: Sequence[tuple[str, list[dict[str, Any]]]], warm: int) -> dict[str, Any]:
        """Run named rounds, and leave out the first `warm` ones: every figure of each name, and medians."""
        found: dict[str, dict[str, list[float]]] = {}
        for (name, _), figures in list(zip(plan, self.run([spec for _, spec in plan]), strict=True))[warm:]:
            rows = found.setdefault(name, {key: [] for key in KEYS})
            for key in KEYS:
                rows[key].append(round(figures.get(key, 0), 1))
        medians = {name: {key: statistics.median(rows[key]) for key in KEYS[:3]} for name, rows in found.items()}
        return {"medians": medians, "rounds": found}
