"""Measure, and write docs/performance.md."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from statistics import median
from typing import Any

from tests.bench import by_hand, watching
from tests.bench.page import write_head
from tests.support.endpoint import MODEL
from tests.support.hosts import Sandbox
from tests.support.paths import SANDBOX, VCLUSTER

ROUNDS = 5
STARTS = 21
PAGE = """# Performance

Written by `make bench` on {date}, on {machine}; the hosts are the sandbox's, two on this one machine.
Ratios compare variants that took turns in one run; the seconds are those of a small machine.

| what | measured | promise |
|---|---|---|
| `vcluster up`, two empty hosts with the image ÷ by hand | {ratio:.2f} ({up:.1f} s ÷ {hand:.1f} s) | at most 1.15 |
| `vcluster up` with nothing to do | {idle:.2f} s | under 2 s |
| round trips per host in that, once connected | {trips} | at most 7 |
| `vcluster --help` ÷ `python -c 'import typer'` | {start:.2f} ({help:.0f} ms ÷ {typer:.0f} ms) | at most 2 |
| `status --watch`, in percent of a core: here, on a host | {watch.here:.2f} %, {there:.2f} % | under 5 %, under 1 % |

By hand means: one ssh a host, side by side, `docker run` with the same flags and `ray start` as the command,
then `ray status` in the head's container over and over until it counts every GPU.
Each figure is a median, of {rounds} rounds and {starts} starts.
[Figures from GPU hosts](gpu-performance.md) are on a page of their own.
"""


def seconds(argv: list[str]) -> float:
    """How long a command takes that must succeed."""
    started = time.monotonic()
    subprocess.run(argv, check=True, capture_output=True, timeout=400)
    return time.monotonic() - started


def measure_up(sandbox: Sandbox) -> tuple[float, float]:
    """Medians of `up` and of the same by hand, which take turns."""
    sandbox.vcluster("up", "--yes").ok()
    sandbox.vcluster("down", "--yes").ok()
    plan: dict[str, Any] = sandbox.vcluster("plan", "--json").ok().json()
    image = sandbox.docker("gpu1", "images", "vcluster-node", "--format", "{{.Repository}}:{{.Tag}}").strip()
    ours, theirs = [], []
    for round_ in range(ROUNDS):
        theirs.append(by_hand.up(sandbox, plan, image))
        by_hand.down(sandbox)
        started = time.monotonic()
        sandbox.vcluster("up").ok()
        ours.append(time.monotonic() - started)
        sandbox.vcluster("down", "--yes").ok()
        print(f"round {round_ + 1}: by hand {theirs[-1]:.1f} s, up {ours[-1]:.1f} s", file=sys.stderr)
    return median(ours), median(theirs)


def measure_idle(sandbox: Sandbox) -> tuple[float, int]:
    """Median seconds of an `up` with nothing to do, and the most round trips to a host in it."""
    sandbox.vcluster("up").ok()
    took, trips = [], 0
    for _ in range(ROUNDS):
        started = time.monotonic()
        result = sandbox.vcluster("up", "--json").ok().event("result")
        took.append(time.monotonic() - started)
        trips = max(trips, *result["round_trips"].values())
    return median(took), trips


def measure_start() -> tuple[float, float]:
    """Median seconds of `--help` and of importing typer, which take turns."""
    pairs = [
        (seconds([str(VCLUSTER), "--help"]), seconds([sys.executable, "-c", "import typer"])) for _ in range(STARTS)
    ]
    return median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)


def main() -> int:
    """Measure everything, print it, and write the page."""
    helped, typer = measure_start()
    subprocess.run([str(VCLUSTER), "sandbox", "up", "--dir", str(SANDBOX)], check=True)
    sandbox = Sandbox(SANDBOX)
    sandbox.vcluster("down", "--yes").ok()
    up, hand = measure_up(sandbox)
    idle, trips = measure_idle(sandbox)
    sandbox.vcluster("serve", "--yes", MODEL).ok()
    watch = watching.measure(sandbox)
    sandbox.vcluster("down", "--yes").ok()
    if not os.environ.get("VCLUSTER_KEEP_SANDBOX"):
        subprocess.run([str(VCLUSTER), "sandbox", "down", "--dir", str(SANDBOX)], check=True)
    page = PAGE.format(
        date=datetime.now(UTC).date(),
        machine=f"{os.cpu_count()} cores, Python {platform.python_version()}",
        ratio=up / hand,
        up=up,
        hand=hand,
        idle=idle,
        trips=trips,
        start=helped / typer,
        help=helped * 1000,
        typer=typer * 1000,
        watch=watch,
        there=watch.host + watch.metrics,
        rounds=ROUNDS,
        starts=STARTS,
    )
    write_head(page)
    print(page)
    kept = up / hand <= 1.15 and idle < 2 and trips <= 7 and helped / typer <= 2
    kept = kept and watch.here < 5 and watch.host + watch.metrics < 1
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
