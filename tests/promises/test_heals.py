"""P27: parts of a cluster that serves are killed; it serves again without help."""

from __future__ import annotations

import subprocess
import time

import pytest

from tests.support.attack import attack
from tests.support.breaks import root
from tests.support.endpoint import complete, tunnel
from tests.support.hosts import Sandbox
from tests.support.served import API_KEY, node_status, ready_since, serve, until_ready_again, with_secrets
from vcluster_sandbox import names

pytestmark = [pytest.mark.e2e, pytest.mark.promise, pytest.mark.deep]

# Twice what a start takes here, and Ray's own time to notice.
LIMIT = 240.0
IN = "docker exec vcluster-sandbox"
# What is broken, on which host, how, and whether the program on the head lives to keep the first failure.
BREAKS = [
    ("a worker's node program is killed", "gpu2", f"{IN} pkill -9 -f '^python3 /opt/vcluster/node.py'", True),
    ("a worker's raylet is killed", "gpu2", f"{IN} pkill -9 raylet", True),
    ("one rank of vLLM is killed", "gpu2", f"{IN} pkill -9 -f RayWorker", True),
    ("the head's vLLM is killed", "gpu1", f"{IN} pkill -9 -f 'vllm serve'", True),
    ("the head's Ray is killed", "gpu1", f"{IN} pkill -9 gcs_server", True),
    ("the head's node program is killed", "gpu1", f"{IN} pkill -9 -f '^python3 /opt/vcluster/node.py'", False),
    ("a worker's Docker engine is restarted", "gpu2", "engine stop; engine start {data}", True),
    ("the head's Docker engine is restarted", "gpu1", "engine stop; engine start {data}", False),
]


def answers(cluster: Sandbox) -> str:
    """What the endpoint answers, by a tunnel of its own."""
    with tunnel(cluster) as url:
        return complete(url, API_KEY, max_tokens=8)


@pytest.mark.parametrize("row", BREAKS, ids=[row[0] for row in BREAKS])
def test_serves_again(sandbox: Sandbox, row: tuple[str, str, str, bool]) -> None:
    what, host, script, kept = row
    cluster = serve(with_secrets(sandbox))
    said = answers(cluster)
    with attack("P27", what) as measured:
        broke = time.time()
        root(cluster, host, script.format(data=names.Sandbox(cluster.folder).data(host)))
        unready, ready = until_ready_again(cluster, broke, LIMIT)
        assert answers(cluster) == said
        status = cluster.vcluster("status").ok().out
        measured.figure = f"not ready after {unready:.0f} s, serving again after {ready:.0f} s"
        if kept:
            assert "recovered; the last failure was " in status, status
            measured.figure += "; first failure kept and shown"


@pytest.mark.parametrize("host", ["gpu2", "gpu1"])
def test_a_host_is_restarted(sandbox: Sandbox, host: str) -> None:
    cluster = serve(with_secrets(sandbox))
    with attack(
        "P27", f"the host of {'the head' if host == 'gpu1' else 'a worker'} loses power and comes back"
    ) as measured:
        broke = time.time()
        for verb in ("kill", "start"):
            subprocess.run(["docker", verb, cluster.container(host)], check=True, capture_output=True)
        _, ready = until_ready_again(cluster, broke, LIMIT)
        answers(cluster)
        measured.figure = f"serving again after {ready:.0f} s"


def test_a_container_that_a_person_stopped(sandbox: Sandbox) -> None:
    """Docker takes `docker kill` for a person's decision and leaves the container alone; an `up` brings it back."""
    cluster = serve(with_secrets(sandbox))
    with attack("P27", "docker kill of a worker's container, which Docker takes for a stop by a person") as measured:
        broke = time.time()
        root(cluster, "gpu2", "docker kill vcluster-sandbox")
        cluster.vcluster("up", "--yes").ok()
        _, ready = until_ready_again(cluster, broke, LIMIT)
        measured.figure = (
            f"Docker leaves it stopped, by its rule; one up, then serving again {ready:.0f} s after the kill"
        )


def test_a_worker_is_missing(sandbox: Sandbox) -> None:
    """Shown as ready only while every rank is there: looked at all the time until the worker is back."""
    cluster = serve(with_secrets(sandbox))
    with attack("P28", "a worker is stopped while serving, and stays away") as measured:
        root(cluster, "gpu2", "docker stop -t 2 vcluster-sandbox")
        began = time.monotonic()
        while ready_since(cluster) is not None:
            assert time.monotonic() - began < 60
        noticed = time.monotonic() - began
        looks = 0
        while time.monotonic() - began < 60:
            status = node_status(cluster)
            assert status is not None
            assert status["serve"]["phase"] != "ready"
            looks += 1
        refused = cluster.vcluster("serve", "sandbox/tiny-llama")
        assert (refused.code, "fix: vcluster up" in refused.err) == (3, True)
        measured.figure = f"not ready after {noticed:.0f} s, and in none of {looks} looks until a minute later"
    cluster.vcluster("up", "--yes").ok()
