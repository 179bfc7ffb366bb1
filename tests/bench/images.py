"""Brings the engine's image to four hosts, whole and with one new layer: `python -m tests.bench.images [ROUNDS]`.

Beside `vcluster image push`, in turns: what a person would type, `docker save | ssh HOST docker load` to each host side
by side. Makes a sandbox of five hosts and removes it. Prints every run, and writes into docs/performance.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

from tests.bench.page import write_section
from tests.support.hosts import Sandbox
from tests.support.paths import VCLUSTER
from vcluster_sandbox.names import CPU_IMAGE

MEGABYTES = 50
HOSTS = [f"gpu{number}" for number in range(2, 6)]
SOURCE = "gpu1"
PUSH, LOAD = "`vcluster image push`", "`docker save \\| ssh HOST docker load` of the whole, side by side"
PAGE = """Written by `python -m tests.bench.images`. An image of {size:.1f} GB, of which the {hosts} receivers lack one
layer of {megabytes} MB, or, as a single layer, all; five sandbox hosts on this one machine, in turns, medians of
{rounds} rounds. The load of the machine was {load:.0f} in the last quarter of an hour of this.

| receivers lack | way | all hosts have it | ratio | promise |
|---|---|---|---|---|
{rows}
"""
Way = Callable[[Sandbox, str], None]
BLOB = f"""set -eu; folder=$(mktemp -d); cd $folder; head -c {MEGABYTES}000000 /dev/urandom > blob
trap 'rm -rf $folder' EXIT
"""
# By what the receivers lack: how it is built, and the most that a push may take of the other way's time.
KINDS = {
    "one layer": (
        BLOB
        + f"""printf '%s\\n' 'FROM {CPU_IMAGE}' 'COPY blob /opt/blob' > Dockerfile
DOCKER_BUILDKIT=0 docker build --quiet --tag "$1" . 2>/dev/null""",
        0.3,
    ),
    "all of it": (
        BLOB
        + f"""docker create --name whole {CPU_IMAGE}; docker cp blob whole:/opt/blob
docker export whole | docker import - "$1"; docker rm whole""",
        1.5,
    ),
}


def build(sandbox: Sandbox, kind: str, name: str) -> None:
    """An image on the source that has 50 MB of random bytes more than the sandbox's."""
    sandbox.on(SOURCE, "bash", "-c", KINDS[kind][0], "-", name)


def each(act: Callable[[str], object], *hosts: str) -> None:
    """On these hosts, or on all receivers, side by side."""
    with ThreadPoolExecutor(len(HOSTS) + 1) as pool:
        list(pool.map(act, hosts or HOSTS))


def forget(sandbox: Sandbox, name: str, host: str) -> None:
    """Remove the image from a host."""
    sandbox.docker(host, "image", "rm", name)


def push(sandbox: Sandbox, name: str) -> None:
    """The push of vcluster."""
    sandbox.vcluster("image", "push", name, seconds=1800).ok()


def load(sandbox: Sandbox, name: str) -> None:
    """The whole image to each host through this machine."""
    ssh = f"ssh -F {sandbox.folder / 'ssh_config'}"

    def send(host: str) -> None:
        line = f"set -o pipefail; {ssh} {SOURCE} docker save {name} | {ssh} {host} docker load"
        subprocess.run(["bash", "-c", line], check=True, capture_output=True, timeout=1800)

    each(send)


def measure(sandbox: Sandbox, kind: str, ways: dict[str, Way], rounds: int) -> dict[str, float]:
    """The median seconds of each way until every host has the image."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    for round_ in range(rounds):
        for number, (way, bring) in enumerate(ways.items()):
            name = f"bench/way{number}:{round_}"
            build(sandbox, kind, name)
            began = time.monotonic()
            bring(sandbox, name)
            times[way].append(time.monotonic() - began)
            look = ("image", "inspect", name, "--format", "{{.Id}}")
            ids = {sandbox.docker(host, *look) for host in (SOURCE, *HOSTS)}
            assert len(ids) == 1, f"{name} is not the same image everywhere: {ids}"
            each(partial(forget, sandbox, name), SOURCE, *HOSTS)
            print(f"{kind}, round {round_ + 1}: {way}: {times[way][-1]:.1f} s", flush=True)
    return {way: median(found) for way, found in times.items()}


def main() -> int:
    """Make the hosts, measure, write the section, and remove the hosts."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    ways: dict[str, Way] = {PUSH: push, LOAD: load}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        where = ["--dir", f"{folder}/sandbox"]
        count = str(len(HOSTS) + 1)
        subprocess.run([VCLUSTER, "sandbox", "up", "--hosts", count, "--gpus", "1", *where], check=True)
        stack.callback(lambda: subprocess.run([VCLUSTER, "sandbox", "down", *where], check=False))
        sandbox = Sandbox(Path(folder) / "sandbox")
        found = {kind: measure(sandbox, kind, ways, rounds) for kind in KINDS}
        size = int(sandbox.docker(SOURCE, "image", "inspect", CPU_IMAGE, "--format", "{{.Size}}")) / 1e9
    ratios = {kind: took[PUSH] / took[LOAD] for kind, took in found.items()}
    rows = [
        f"| {kind} | {PUSH} | {found[kind][PUSH]:.1f} s | {ratio:.2f} | at most {KINDS[kind][1]} |\n"
        f"| | {LOAD} | {found[kind][LOAD]:.1f} s | 1.00 | |"
        for kind, ratio in ratios.items()
    ]
    figures = {"size": size, "hosts": len(HOSTS), "megabytes": MEGABYTES, "rounds": rounds, "load": os.getloadavg()[2]}
    page = PAGE.format(**figures, rows="\n".join(rows))
    write_section("An image to four hosts, whole and with one new layer", page)
    print(page)
    return 0 if all(ratio <= KINDS[kind][1] for kind, ratio in ratios.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
