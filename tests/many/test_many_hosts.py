"""Many real SSH servers, 100 ms away, driven by the program as a user runs it: 32 in CI, each night 256."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.many.cluster import Cluster, Played
from tests.many.conftest import FEW_FILES, MEMORY_MB, SOME
from tests.many.driven import Run, drive
from tests.support.figures import record
from vllm_cluster.kernel.hosts.connection import CONNECT_SECONDS, WORKERS

pytestmark = pytest.mark.alone

# A thread a connection, those that work, and a few of the program's own.
SPARE_THREADS = 40
# What a host that falls silent is given: 5 s until it is asked, 15 s for its answer, 1 s to notice.
SILENCE = 21
BAD = {3: "mute", 17: "half", 18: "refuses", 30: "refuses"}


def bounded(run: Run, hosts: int) -> bool:
    """Whether memory and threads stayed within what is promised."""
    return run.rss_mb < MEMORY_MB and run.threads <= hosts + WORKERS + SPARE_THREADS


@pytest.mark.promise("P21")
@pytest.mark.parametrize(
    "verb", ["check", "status", *(pytest.param(verb, marks=pytest.mark.deep) for verb in ("plan", "up", "down"))]
)
def test_every_verb_on_many_hosts(verb: str, key: Path, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "laptop", [Played(n) for n in range(SOME)], key)
    with cluster.played(up=verb != "plan"):
        run = drive(cluster, verb, "--json")
    assert run.code == 0, run.err
    passed = bounded(run, SOME)
    record("P21", f"{verb} on {SOME} hosts", run.figure, passed)
    assert passed, run.figure
    last = json.loads(run.out.splitlines()[-1])
    if verb == "plan":
        assert [len(stage["operations"]) for stage in last["stages"]] == [0, 1, 1, SOME - 1]
    elif verb == "up":
        assert (last["hosts"], last["operations"]) == (SOME, 0)
        trips = sorted(last["round_trips"].values())
        # The head is asked for its members too.
        assert (trips[-1], trips[-2]) == (7, 6)
    elif verb == "check":
        assert (last["ok"], len(last["hosts"])) == (True, SOME)
        assert not [one for one in last["not_checked"] if "links" in one["what"]]
    elif verb == "status":
        assert last["up"] and [host["joined_gpus"] for host in last["hosts"]] == [2] * SOME
    else:
        assert last["removed"] == 3 * SOME


# On 256 hosts it takes 17 s of processor time, and on 32 it mostly waits.
@pytest.mark.quiet
@pytest.mark.promise("P21")
def test_hosts_that_hang_or_refuse_fail_alone(key: Path, tmp_path: Path) -> None:
    hosts = [Played(n, BAD.get(n, "well")) for n in range(SOME)]
    cluster = Cluster(tmp_path / "laptop", hosts, key)
    with cluster.played(up=True):
        run = drive(cluster, "status", "--json", prefix=FEW_FILES)
    assert run.code == 4, run.err
    status = json.loads(run.out)
    names = {f"gpu{number:03}": kind for number, kind in BAD.items()}
    assert sorted(status["unreachable"]) == sorted(names)
    rows = {row["host"]: row for row in status["hosts"]}
    assert {row["state"] for name, row in rows.items() if name not in names} == {"running"}
    words = {"mute": "no answer from", "half": "no keepalive reply", "refuses": "nothing listens"}
    assert {n: words[kind] in rows[n]["problem"] for n, kind in names.items()} == dict.fromkeys(names, True), rows
    # All others are done while one is silent; it began late by no more than their share of the work.
    passed = bounded(run, SOME) and run.seconds < CONNECT_SECONDS + SILENCE
    record("P21", f"{SOME} hosts, 1 mute, 1 silent in its answer, 2 refuse", run.figure, passed)
    assert passed, run.figure
