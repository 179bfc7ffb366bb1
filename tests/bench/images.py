"""Brings a one-layer change of the engine's image to four hosts: `python -m tests.bench.images [ROUNDS]`.

Beside `vcluster image push`, in turns, what a person would type: `docker save | ssh HOST docker load` to each host,
side by side. Makes a sandbox of five hosts and removes it. Prints every run, and writes into docs/performance.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from tests.bench.page import write_section
from tests.support.hosts import Sandbox
from tests.support.paths import VCLUSTER
from vcluster_sandbox.names import CPU_IMAGE

MEGABYTES = 50
RECEIVERS = 4
MAX_RATIO = 0.1
SOURCE = "gpu1"
PAGE = """Written by `python -m tests.bench.images`. An image of {size:.1f} GB, of which the {hosts} receivers lack one
layer of {megabytes} MB; five sandbox hosts on this one machine, in turns, medians of {rounds} rounds.

| way | all hosts have it | ratio | promise |
|---|---|---|---|
| `vcluster image push` | {ours:.1f} s | {ratio:.2f} | at most {most} |
| `docker save \\| ssh HOST docker load` of the whole, side by side | {theirs:.1f} s | 1 | |
"""


def build(sandbox: Sandbox, name: str) -> None:
    """An image on the source that is one layer of random bytes more than the sandbox's."""
    script = f"""set -eu; folder=$(mktemp -d); cd $folder; head -c {MEGABYTES}000000 /dev/urandom > blob
    printf '%s\\n' 'FROM {CPU_IMAGE}' 'COPY blob /opt/blob' > Dockerfile
    DOCKER_BUILDKIT=0 docker build --quiet --tag {name} . 2>/dev/null; rm -rf $folder"""
    sandbox.on(SOURCE, "sh", "-c", script)


def by_hand(sandbox: Sandbox, name: str, hosts: list[str]) -> None:
    """The whole image to each host through this machine."""
    ssh = f"ssh -F {sandbox.folder / 'ssh_config'}"

    def send(host: str) -> None:
        line = f"set -o pipefail; {ssh} {SOURCE} docker save {name} | {ssh} {host} docker load"
        subprocess.run(["bash", "-c", line], check=True, capture_output=True, timeout=1800)

    with ThreadPoolExecutor(len(hosts)) as pool:
        list(pool.map(send, hosts))


def measure(sandbox: Sandbox, rounds: int) -> tuple[float, float, float]:
    """Median seconds of `image push` and of the same by hand, and the size of the image in GB."""
    hosts = [f"gpu{number}" for number in range(2, RECEIVERS + 2)]
    ours: list[float] = []
    theirs: list[float] = []
    for round_ in range(rounds):
        for way, times in (("pushed", ours), ("loaded", theirs)):
            name = f"bench/{way}:{round_}"
            build(sandbox, name)
            began = time.monotonic()
            if way == "pushed":
                sandbox.vcluster("image", "push", name, seconds=1800).ok()
            else:
                by_hand(sandbox, name, hosts)
            times.append(time.monotonic() - began)
            ids = {sandbox.docker(host, "image", "inspect", name, "--format", "{{.Id}}") for host in [SOURCE, *hosts]}
            assert len(ids) == 1, f"{name} is not the same image everywhere: {ids}"
        print(f"round {round_ + 1}: push {ours[-1]:.1f} s, by hand {theirs[-1]:.1f} s", flush=True)
    size = int(sandbox.docker(SOURCE, "image", "inspect", name, "--format", "{{.Size}}")) / 1e9
    return median(ours), median(theirs), size


def main() -> int:
    """Make the hosts, measure, write the section, and remove the hosts."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with tempfile.TemporaryDirectory() as folder:
        where = ["--dir", f"{folder}/sandbox"]
        subprocess.run([VCLUSTER, "sandbox", "up", "--hosts", str(RECEIVERS + 1), "--gpus", "1", *where], check=True)
        try:
            ours, theirs, size = measure(Sandbox(Path(folder) / "sandbox"), rounds)
        finally:
            subprocess.run([VCLUSTER, "sandbox", "down", *where], check=False)
    figures = {"ours": ours, "theirs": theirs, "ratio": ours / theirs, "size": size, "most": MAX_RATIO}
    page = PAGE.format(**figures, hosts=RECEIVERS, megabytes=MEGABYTES, rounds=rounds)
    write_section("An image with one new layer, to four hosts", page)
    print(page, f"The load of the machine was {os.getloadavg()[2]:.0f}.")
    return 0 if ours / theirs <= MAX_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
