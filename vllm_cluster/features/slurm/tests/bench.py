"""Measure jobs of `vcluster slurm` on a real Slurm with two nodes here.

`python -m vllm_cluster.features.slurm.tests.bench` runs it. A program takes the place of vLLM, whose start is a pause:
what is measured is all around it. A script by hand has the same nodes and queue, and takes turns with it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from tests.support.paths import VCLUSTER
from vllm_cluster.features.slurm.tests.made import Slurm, rank_of, slurm, timed

ROUNDS = 5
START_SECONDS = 60.0
WORDS = ("--nodes", "2", "--gpus", "1", "--time", "0:30:00", "--sbatch", "cpus-per-task=1")
# As the pages of universities have it: the leader's address, one srun, and a loop until a token comes.
BY_HAND = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=1 --time=0:30:00
umask 077; head -c 32 /dev/urandom | base64 | tr -d '+/=\\n' >key
export VCLUSTER_API_KEY_FILE=$PWD/key VCLUSTER_ATTEMPT=1
export MASTER=$(hostname -I | cut -d' ' -f1)
srun --kill-on-bad-exit=1 bash -c 'exec vllm serve org/model --nnodes=2 --node-rank=$SLURM_PROCID --master-port=19990 \\
  --host=$MASTER --port=19991 $([ $SLURM_PROCID -gt 0 ] && echo --headless)' &
until curl -sf -H "Authorization: Bearer $(cat key)" -d '{"prompt": "Hello", "max_tokens": 1}' \\
  "http://$MASTER:19991/v1/completions"; do sleep 0.5; done
touch ready; wait
"""


def submit_job(cluster: Slurm) -> tuple[str, Path]:
    """Submit a job of vcluster; its number, and the file that is there once a token came."""
    argv = [str(VCLUSTER), "slurm", "--json", "org/model", *WORDS, "--submit"]
    number = str(json.loads(cluster.run(*argv))["job"])
    return number, cluster.jobs / number / "ready.json"


def submit_by_hand(cluster: Slurm) -> tuple[str, Path]:
    """Submit the script by hand; the same of it."""
    folder = Path(tempfile.mkdtemp(dir=cluster.folder))
    number = cluster.run("sbatch", "--parsable", f"--chdir={folder}", "--output=out", text=BY_HAND)
    return number, folder / "ready"


def starts(cluster: Slurm) -> tuple[list[float], list[float]]:
    """The seconds from a submission to a token, of vcluster and by hand in turns."""
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for times, submit in zip(took, (submit_job, submit_by_hand), strict=True):
            began = time.monotonic()
            number, ready = submit(cluster)
            timed(ready.exists, START_SECONDS + 60)
            times.append(time.monotonic() - began)
            end(cluster, number)
    return took


def kills(cluster: Slurm) -> tuple[list[float], list[float], float]:
    """The seconds from a killed rank to the end of its step, from there to a token, and of the first start."""
    number, ready = submit_job(cluster)
    timed(ready.exists, START_SECONDS + 60)
    first = float(json.loads(ready.read_text())["start_seconds"])
    ended, again = list[float](), list[float]()
    for _ in range(ROUNDS):
        began = time.monotonic()
        os.kill(rank_of(number, 1), signal.SIGKILL)
        timed(lambda: len(_lines(cluster.jobs / number / "ends")) > len(ended))
        ended.append(time.monotonic() - began)
        timed(lambda: not ready.exists())
        timed(ready.exists, START_SECONDS + 60)
        again.append(time.monotonic() - began - ended[-1])
    end(cluster, number)
    return ended, again, first


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def end(cluster: Slurm, number: str) -> None:
    """Cancel a job, and wait until its nodes are free."""
    subprocess.run(["scancel", number], env=cluster.environment, check=True)
    timed(lambda: number not in cluster.run("squeue", "-h", "-o", "%i").split(), 90)


def show(what: str, times: Sequence[float]) -> None:
    """Print a median, and all of it."""
    print(f"{what}: {median(times):.2f} s (of {', '.join(f'{one:.2f}' for one in times)})", flush=True)


def main() -> None:
    """Measure, and print the figures that docs/developers/measured.md has."""
    pause = {"VLLM_STARTS_FOR": f"{START_SECONDS:g}"}
    with tempfile.TemporaryDirectory() as folder, slurm(Path(folder), environment=pause) as cluster:
        mine, hand = starts(cluster)
        show("from --submit to a token", mine)
        show("by hand", hand)
        print(f"ratio: {median(mine) / median(hand):.3f}", flush=True)
        ended, again, first = kills(cluster)
        show("a killed rank to the end of its step", ended)
        show("from there to a token", again)
        print(f"the first start took {first:.2f} s", flush=True)


if __name__ == "__main__":
    main()
