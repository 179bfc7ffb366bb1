"""Serves layouts with vcluster and by hand, one after the other on the same hosts, and measures both.

`python -m tests.gpu.beside INVENTORY -o REPORT --layouts mp-pp2,mp-tp2`, after `vcluster up`; writes REPORT.json. By
hand is `vllm serve` as a person types it, in the same containers, without key or front.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.__main__ import show_progress, words
from tests.gpu.cluster import Cluster, Failed, opened
from tests.gpu.heal import KILLS, heal
from tests.gpu.report import Report
from tests.gpu.rounds import Rounds, Way

# Ports of the engine by hand, and of the host that leads it.
HAND_PORT, HAND_MASTER = 8900, 29600
START_SECONDS, END_SECONDS = 300.0, 40.0
# Of what takes longer in a start, the report has its name and seconds.
LONG_SECONDS = 0.5


@dataclass(frozen=True)
class Layout:
    """The same layout in both spellings."""

    ours: tuple[str, ...]
    hand: tuple[str, ...]
    ray: bool = False
    one: bool = False  # one host of the cluster
    loads: tuple[int, ...] = (16, 256)


# The flags of a person's line; of each host's rank and of the head's address more is added.
TP, PP, DP, EP = (
    "--tensor-parallel-size",
    "--pipeline-parallel-size",
    "--data-parallel-size",
    "--enable-expert-parallel",
)
LAYOUTS = {
    "one": Layout(("--tp", "1", "--pp", "1"), (TP, "1"), one=True, loads=(16, 256, 512)),
    "ray-pp2": Layout(("--tp", "1", "--pp", "2", "--backend", "ray"), (TP, "1", PP, "2"), ray=True),
    "mp-pp2": Layout(("--tp", "1", "--pp", "2", "--backend", "mp"), (TP, "1", PP, "2")),
    "mp-tp2": Layout(("--tp", "2", "--pp", "1", "--backend", "mp"), (TP, "2", PP, "1")),
    "tp2-ep": Layout(("--tp", "2", "--pp", "1", "--ep", "--backend", "mp"), (TP, "2", PP, "1", EP), loads=(16, 64)),
    "dp2-ep": Layout(("--dp", "2", "--ep"), (TP, "1", DP, "2", EP), loads=(16, 64)),
    # Of two hosts with two GPUs each.
    "ray-tp2-pp2": Layout(("--tp", "2", "--pp", "2", "--backend", "ray"), (TP, "2", PP, "2"), ray=True),
    "mp-tp2-pp2": Layout(("--tp", "2", "--pp", "2", "--backend", "mp"), (TP, "2", PP, "2")),
    "mp-tp4": Layout(("--tp", "4", "--pp", "1", "--backend", "mp"), (TP, "4", PP, "1")),
    "dp2-tp2-ep": Layout(("--dp", "2", "--tp", "2", "--ep"), (TP, "2", DP, "2", EP), loads=(16, 64)),
}

# A session of its own, so that one signal reaches all that it starts.
HAND = 'echo $$ >/tmp/by-hand.pid; exec vllm serve "$@" >/tmp/by-hand.log 2>&1 </dev/null'
END = """
pid=$(cat /tmp/by-hand.pid) || exit 0
kill -TERM "$pid" 2>/dev/null
for i in $(seq "$1"); do kill -0 -- "-$pid" 2>/dev/null || exit 0; sleep 0.5; done
kill -KILL -- "-$pid"
"""
READY = """
import json, sys, urllib.request
body = json.dumps({"model": sys.argv[2], "prompt": "The cluster is", "max_tokens": 4}).encode()
url, kind = f"http://127.0.0.1:{sys.argv[1]}/v1/completions", {"Content-Type": "application/json"}
asked = urllib.request.Request(url, body, kind)
json.load(urllib.request.urlopen(asked, timeout=30))
"""


@dataclass
class Beside:
    """One run over a cluster that is up."""

    cluster: Cluster
    options: argparse.Namespace
    report: Report
    rounds: Rounds

    def layout(self, name: str) -> dict[str, Any]:
        """Both, one after the other; what one cannot do is in its place.

        Raises:
            Failed: neither could be measured.
        """
        layout = LAYOUTS[name]
        found: dict[str, Any] = {}
        sides = [("vcluster", self._with_vcluster), ("by hand", self._by_hand)]
        # What is compiled in a first start lies ready for those after it.
        sides += [("vcluster again", self._ready_again)] if self.options.again else []
        sides = [("heal", self._healed)] if self.options.kills else sides
        for side, measure in sides:
            try:
                found[side] = measure(layout)
            except Failed as error:
                found[side] = {"failed": str(error)[-1500:]}
            self.report.keep(name, found)
            show_progress(f"{name} {side}: {json.dumps(found[side])[:1200]}")
        if len(failed := [side for side in found if "failed" in found[side]]) == len(found):
            raise Failed(f"{name}: {failed}")
        return found

    def _with_vcluster(self, layout: Layout) -> dict[str, Any]:
        with self._served(layout) as start:
            # The engine's own port too, in turns with the front: one start differs from the next.
            ways = {"front": self.rounds.front(), "engine": self.rounds.engine(self.cluster.head)}
            return {**start, **self._measured(layout, ways)}

    def _ready_again(self, layout: Layout) -> dict[str, Any]:
        with self._served(layout) as start:
            return start

    def _healed(self, layout: Layout) -> dict[str, Any]:
        kills: list[dict[str, Any]] = []
        with self._served(layout) as start:
            for what in self.options.kills:
                kills.append(heal(self.cluster, what, START_SECONDS))
                show_progress(json.dumps(kills[-1]))
            return {**start, "kills": kills}

    @contextmanager
    def _served(self, layout: Layout) -> Iterator[dict[str, Any]]:
        """Serve it with vcluster; the seconds until it was ready, and what took them."""
        model, flags = self.options.model, self.options.flags.split()
        run = self.cluster.vcluster("serve", model, "--yes", *layout.ours, "--", *flags).ok()
        try:
            yield {"ready": run.seconds, "phases": [row for row in run.phases() if row[1] >= LONG_SECONDS]}
        finally:
            self.cluster.vcluster("stop", "--yes").ok()

    def _by_hand(self, layout: Layout) -> dict[str, Any]:
        began = time.monotonic()
        try:
            self._start(layout)
            self._until_ready(began)
            return {
                "ready": round(time.monotonic() - began, 1),
                **self._measured(layout, {"engine": Way(HAND_PORT, "")}),
            }
        finally:
            for host in self.cluster.inventory.hosts:
                self.cluster.inside(host, END, str(int(END_SECONDS * 2)), seconds=END_SECONDS + 30)

    def _start(self, layout: Layout) -> None:
        hosts = [self.cluster.head, *(name for name in self.cluster.inventory.hosts if name != self.cluster.head)]
        common = [
            self.options.model,
            *layout.hand,
            "--port",
            str(HAND_PORT),
            *self.options.flags.split(),
        ]
        if layout.ray or layout.one:
            hosts, common = hosts[:1], [*common, *(["--distributed-executor-backend", "ray"] if layout.ray else [])]
        for rank, host in enumerate(hosts):
            at = self.cluster.inventory.hosts[self.cluster.head].address
            more = ["--nnodes", str(len(hosts)), "--node-rank", str(rank), "--master-addr", str(at)]
            more += ["--master-port", str(HAND_MASTER), *(["--headless"] if rank else [])]
            argv = [*common, *(more if len(hosts) > 1 else [])]
            self.cluster.on(host, "docker", "exec", "-d", self.cluster.node, "setsid", "sh", "-c", HAND, "sh", *argv)

    def _until_ready(self, began: float) -> None:
        asked = ["docker", "exec", self.cluster.node, "python3", "-c", READY, str(HAND_PORT), self.options.model]
        while self.cluster.on(self.cluster.head, *asked, seconds=60.0).returncode:
            if time.monotonic() - began > START_SECONDS:
                raise Failed(self.cluster.inside(self.cluster.head, "tail -n 25 /tmp/by-hand.log").text)
            time.sleep(0.5)

    def _measured(self, layout: Layout, ways: dict[str, Way]) -> dict[str, Any]:
        """One round of each way to warm up, then the ways in turns."""
        plan = [(way, load) for load in layout.loads for _ in range(self.options.rounds) for way in ways]
        plan = [(way, layout.loads[-1]) for way in ways] + plan
        return self.rounds.measure(
            [(f"{way} {load}", self._random(ways[way], load)) for way, load in plan], warm=len(ways)
        )

    def _random(self, way: Way, load: int) -> list[dict[str, Any]]:
        waves = min(self.options.waves, 4 if load < 128 else 2)
        return self.rounds.random(way, load, load * waves, self.options.tokens)


def main() -> int:
    """Measure every layout that was named; 0 when each was."""
    made = argparse.ArgumentParser(prog="python -m tests.gpu.beside", description=__doc__)
    made.add_argument("inventory", type=Path)
    made.add_argument("-o", "--output", type=Path, default=Path("beside"))
    made.add_argument("--layouts", type=words(tuple(LAYOUTS)), default=list(LAYOUTS), help=",".join(LAYOUTS))
    made.add_argument("--model", default="bench/llama8b")
    made.add_argument("--flags", default="--load-format dummy --max-model-len 8192 --no-enable-prefix-caching")
    made.add_argument("--tokens", type=int, default=128)
    made.add_argument("--rounds", type=int, default=2)
    made.add_argument("--waves", type=int, default=4, help="of requests, one after the other, in a round")
    made.add_argument("--again", action="store_true", help="start once more at the end, for the seconds to ready")
    made.add_argument("--kills", type=words(tuple(KILLS)), default=[], help="instead: kill these, one after the other")
    options = made.parse_args()
    # What is served by hand holds GPUs until it is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    report, well = Report.resumed(options.output), True
    with suppress(KeyboardInterrupt), opened(options.inventory) as cluster:
        beside = Beside(cluster, options, report, Rounds(cluster, options.model))
        for name in options.layouts:
            try:
                beside.layout(name)
            except Failed as error:
                well = False
                show_progress(str(error))
        return 0 if well else 1
    return 130


if __name__ == "__main__":
    sys.exit(main())
