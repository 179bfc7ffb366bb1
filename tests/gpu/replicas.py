"""Serves a pipeline over GPU hosts, one replica and two, and measures what the second brings and what its end costs.

`python -m tests.gpu.replicas INVENTORY -o REPORT`, after `vcluster up` on two hosts; writes REPORT.json. Every request
goes to the front, from the head's container.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.gpu.__main__ import show_progress, words
from tests.gpu.cluster import Cluster, Failed, Run, opened
from tests.gpu.heal import KILLS
from tests.gpu.report import Report
from tests.gpu.rounds import Rounds, Way

STEPS = ("speed", "apart", "prefix", "steady", "kill", "roll")
# One model over all hosts is a pipeline; one replica alone and two have one host each.
PIPELINE, ONE, TWO = FORMS = ("pipeline", "1", "2")
ONLY_ONE = ("steady",)  # of one replica: the front beside the engine's own port
ONLY_TWO = ("apart", "kill", "roll")
NOT_OF = {PIPELINE: {*ONLY_ONE, *ONLY_TWO}, ONE: {*ONLY_TWO}, TWO: {*ONLY_ONE}}
CALM, AFTER_KILL, AFTER_ROLL, AWAY = 15.0, 110.0, 10.0, 20.0
KILLED = {what: KILLS[what] for what in ("rank", "container")}
# Requests that begin later than this after a kill must not fail.
GRACE = 5.0
OUT = "/tmp/streams.json"

# Streams without end, each worker one after the other; [begun, ended, outcome] of each, once SIGTERM comes.
CLIENT = """
import asyncio, json, os, signal, sys, time, aiohttp
url, model, workers, tokens, out = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
words = open(os.environ["VCLUSTER_API_KEY_FILE"]).read().split()
key = words[1] if words[0] == "#vcluster-keys" else words[0]
rows, over = [], asyncio.Event()
async def one(session, number):
    began, first = time.time(), False
    body = {"model": model, "prompt": f"{number} {began} the cluster is", "max_tokens": tokens, "ignore_eos": True,
            "stream": True}
    try:
        async with session.post(url, json=body) as reply:
            if reply.status != 200:
                wait = reply.headers.get("Retry-After")
                rows.append([began, time.time(), f"{reply.status} {'with' if wait else 'without'} Retry-After"])
                return await asyncio.sleep(1)
            done = error = False
            async for line in reply.content:
                first = True
                done, error = done or line.startswith(b"data: [DONE]"), error or line.startswith(b'data: {"error"')
            rows.append([began, time.time(), "ended by an error" if error else "answered" if done else "cut"])
    except (aiohttp.ClientError, OSError) as error:
        rows.append([began, time.time(), "cut" if first else f"failed: {type(error).__name__}"])
        await asyncio.sleep(1)
async def worker(session, number):
    while not over.is_set():
        await one(session, number)
async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    open(out + ".pid", "w").write(str(os.getpid()))
    head = {"Authorization": "Bearer " + key}
    async with aiohttp.ClientSession(headers=head, connector=aiohttp.TCPConnector(limit=0),
                                     timeout=aiohttp.ClientTimeout(total=300)) as session:
        await asyncio.gather(*(worker(session, n) for n in range(workers)))
    open(out + ".new", "w").write(json.dumps(rows))
    os.replace(out + ".new", out)
asyncio.run(main())
"""
ENDED = 'kill -TERM "$(cat "$1.pid")"; for i in $(seq 240); do [ -e "$1" ] && cat "$1" && exit; sleep 0.5; done; exit 1'

# Tokens that the engine of this container looked up in its prefix cache, and those that it found there.
COUNTERS = """
import sys, urllib.request
port, address, path = sys.argv[1:]
words = open(path).read().split() if path else []
key = words[1] if words[:1] == ["#vcluster-keys"] else "".join(words[:1])
headers = {"Authorization": "Bearer " + key} if path else {}
asked = urllib.request.Request(f"http://{address}:{port}/metrics", headers=headers)
rows = urllib.request.urlopen(asked, timeout=20).read().decode().splitlines()
for name in ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"):
    print(sum(float(row.rsplit(None, 1)[1]) for row in rows if row.startswith(name)))
"""


@dataclass
class Measured:
    """One run over a cluster that is up; each step's figures lie under the number of replicas."""

    cluster: Cluster
    options: argparse.Namespace
    report: Report
    rounds: Rounds

    def run(self) -> bool:
        """Each form, one after the other; whether every step could be measured."""
        well = True
        for form in self.options.forms:
            found = self.report.steps.get(form, {})
            found["ready"] = self._serve(form).seconds
            for step in (step for step in self.options.steps if step not in NOT_OF[form]):
                try:
                    found[step] = getattr(self, f"do_{step}")()
                except Failed as error:
                    well, found[step] = False, {"failed": str(error)[-1500:]}
                self.report.keep(form, found)
                show_progress(f"{form} {step}: {json.dumps(found[step])[:1500]}")
        return well

    def _serve(self, form: str, *more: str) -> Run:
        one = self.options.alone.split()
        layout = [] if form == PIPELINE else ["--replicas", form, *(one if form == ONE else [])]
        flags = [*self.options.flags.split(), *more]
        return self.cluster.vcluster("serve", self.options.model, *layout, "--yes", "--", *flags).ok()

    def do_speed(self) -> dict[str, Any]:
        """Random prompts, so that no prefix is shared; each load twice after a round to warm up.

        Two replicas with 512 open have as many each as one with 256.
        """
        way, loads = self.rounds.front(), (512, *(16, 256, 512) * 2)
        began = {host: self.rounds.busy(host) for host in self.cluster.inventory.hosts}
        found = self.rounds.measure([(str(load), self._random(way, load)) for load in loads], warm=1)
        return {**found, "processor seconds": {host: self._busiest(host, before) for host, before in began.items()}}

    def _busiest(self, host: str, before: dict[str, float]) -> dict[str, float]:
        """Of a host's processes, those that took most processor time since."""
        used = {name: round(now - before.get(name, 0), 1) for name, now in self.rounds.busy(host).items()}
        return dict(sorted(used.items(), key=lambda pair: -pair[1])[:6])

    def do_apart(self) -> dict[str, Any]:
        """Each replica asked by clients on its own host alone, both at once: what there is without a front."""
        ways = {host: self.rounds.engine(host) for host in self.cluster.inventory.hosts}
        loads = (256, 256, 512, 512)
        plans = [(host, [self._random(way, load // 2) for load in loads]) for host, way in ways.items()]
        with ThreadPoolExecutor(len(plans)) as pool:
            done = [*pool.map(lambda plan: self.rounds.run(plan[1], plan[0]), plans)]
        each = [[round(row["output_throughput"]) for row in rows] for rows in zip(*done, strict=True)]
        return {"loads": loads, "each": each, "sums": [*map(sum, each)]}

    def do_prefix(self) -> dict[str, Any]:
        """Eight tenants with a system prompt of 2,048 tokens each; how much of the prompts the caches had."""
        before = self._counted()
        tenants = {
            "prefix_repetition_prefix_len": 2048, "prefix_repetition_suffix_len": 128,
            "prefix_repetition_num_prefixes": 8, "prefix_repetition_output_len": 64,
        }  # fmt: skip
        self.rounds.run([self.rounds.spec(self.rounds.front(), 32, 512, dataset_name="prefix_repetition", **tenants)])
        after = self._counted()
        asked, found = (sum(after[host][at] - before[host][at] for host in after) for at in (0, 1))
        by_host = {host: after[host][0] - before[host][0] for host in after}
        return {"tokens": asked, "found": found, "rate": round(found / asked, 4), "tokens by host": by_host}

    def do_steady(self) -> dict[str, Any]:
        """The front beside the engine's own port, with lengths that differ, so that requests come one by one.

        The first of a round are spread over a second: as many once as are open is a burst that no engine meets.
        """
        ways = {"front": self.rounds.front(), "engine": self.rounds.engine(self.cluster.head)}
        turns = [(name, load) for load in (16, 256) for _ in range(2) for name in ways]
        plan = [(f"{name} {load}", self._random(ways[name], load, 0.6, paced=True)) for name, load in turns]
        return self.rounds.measure(plan, warm=0)

    def _random(self, way: Way, load: int, spread: float = 0.0, *, paced: bool = False) -> list[dict[str, Any]]:
        return self.rounds.random(way, load, load * 4, self.options.tokens, spread, paced=paced)

    def do_kill(self) -> dict[str, Any]:
        """What the last host's replica is made of goes while all streams run: a rank, the container, its host."""
        found = {what: self._killed(partial(self._kill, what)) for what in KILLED}
        return {**found, "host": self._killed(self._cut)} if self.options.cut else found

    def _kill(self, what: str) -> None:
        if not self.cluster.kill(self.cluster.worker, *KILLED[what], 1):
            raise Failed(f"no {what} found on {self.cluster.worker}")

    def _cut(self) -> None:
        """Take the host away, and give it back once its replica is missed."""
        subprocess.run(self.options.cut, shell=True, check=True)
        try:
            time.sleep(AWAY)
        finally:
            subprocess.run(self.options.mend, shell=True, check=True)

    def _killed(self, attack: Callable[[], None]) -> dict[str, Any]:
        with self._streaming() as rows:
            time.sleep(CALM)
            at = time.time()
            attack()
            back = self._until_both_ready(at)
            time.sleep(AFTER_ROLL)
        later = Counter(row[2] for row in rows if row[0] >= at + GRACE)
        sooner = Counter(row[2] for row in rows if row[1] >= at and row[0] < at + GRACE)
        return {**back, "under way or begun within 5 s": dict(sooner), "begun later": dict(later)}

    def do_roll(self) -> dict[str, Any]:
        """Both replicas are changed to another flag while all streams run."""
        with self._streaming() as rows:
            time.sleep(CALM)
            run = self._serve(TWO, "--max-num-seqs", "512")
            time.sleep(AFTER_ROLL)
        return {"seconds": run.seconds, "requests": dict(Counter(row[2] for row in rows))}

    def _until_both_ready(self, began: float) -> dict[str, float]:
        """Seconds since the kill until `status` is not ready, and until it is again; what did not come is left out."""
        found: dict[str, float] = {}
        for name, wanted in (("degraded after", False), ("ready again after", True)):
            while time.time() - began < AFTER_KILL and name not in found:
                if (self.cluster.vcluster("status").code == 0) == wanted:
                    found[name] = round(time.time() - began, 1)
        return found

    @contextmanager
    def _streaming(self) -> Iterator[list[list[Any]]]:
        """Open the streams; when it ends, the rows of all that were begun."""
        rows: list[list[Any]] = []
        url = f"http://127.0.0.1:{self.cluster.inventory.ports.api}/v1/completions"
        self.cluster.inside(self.cluster.head, 'rm -f "$1" "$1.pid"', OUT)
        numbers = map(str, (self.options.streams, self.options.stream_tokens))
        argv = ["-d", self.cluster.node, "python3", "-c", CLIENT, url, self.options.model, *numbers, OUT]
        self.cluster.on(self.cluster.head, "docker", "exec", *argv)
        try:
            yield rows
        finally:
            said = self.cluster.inside(self.cluster.head, ENDED, OUT, seconds=150.0)
            rows += json.loads(said.text) if said.returncode == 0 else []
        if not rows:
            raise Failed(f"the client gave nothing: {said.stderr.decode(errors='replace')[-500:]}")

    def _counted(self) -> dict[str, tuple[float, float]]:
        """Of each host with an engine; hosts without one are left out."""
        ways = {}
        for host in self.cluster.inventory.hosts:
            with suppress(Failed):
                ways[host] = self.rounds.engine(host)
        found = {}
        for host, way in ways.items():
            argv = [COUNTERS, str(way.port), way.address, way.key_file]
            said = self.cluster.on(host, "docker", "exec", self.cluster.node, "python3", "-c", *argv)
            if said.returncode:
                raise Failed(f"{host}, port {way.port}: {said.stderr.decode(errors='replace')[-400:]}")
            asked, had = map(float, said.text.split())
            found[host] = asked, had
        return found


def main() -> int:
    """Measure every step; 0 when each was."""
    made = argparse.ArgumentParser(prog="python -m tests.gpu.replicas", description=__doc__)
    made.add_argument("inventory", type=Path)
    made.add_argument("-o", "--output", type=Path, default=Path("replicas"))
    made.add_argument("--steps", type=words(STEPS), default=list(STEPS), help=",".join(STEPS))
    made.add_argument("--forms", type=words(FORMS), default=list(FORMS), help=",".join(FORMS))
    made.add_argument("--alone", default="--tp 1 --pp 1", help="the layout that one host holds")
    made.add_argument("--model", default="bench/llama8b")
    made.add_argument("--flags", default="--load-format dummy --max-model-len 8192")
    made.add_argument("--tokens", type=int, default=128)
    made.add_argument("--clients", type=int, default=1, help="processes that share the requests of a round")
    made.add_argument("--cut", help="a command here that takes the last host away; killed in step kill, too")
    made.add_argument("--mend", help="a command here that gives it back")
    made.add_argument("--streams", type=int, default=256, help="that are open while a part is killed, and in a roll")
    made.add_argument("--stream-tokens", type=int, default=384)
    options = made.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    report = Report.resumed(options.output)
    with opened(options.inventory) as cluster:
        return 0 if Measured(cluster, options, report, Rounds(cluster, options.model, options.clients)).run() else 1


if __name__ == "__main__":
    sys.exit(main())
