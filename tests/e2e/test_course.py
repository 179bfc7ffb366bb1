"""The life of a cluster on real hosts: what it serves is replaced, loses a rank, is rolled back, and all is removed."""

from __future__ import annotations

import time

import pytest

from tests.support.endpoint import MODEL, PROMPT, Asker, complete, tunnel
from tests.support.figures import record
from tests.support.hosts import Sandbox
from tests.support.served import until_ready_again
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

OTHER = "other"


def answer(cluster: Sandbox) -> str:
    """The text that the served model gives at temperature 0."""
    return cluster.vcluster("complete", PROMPT, "--temperature", "0", "--max-tokens", "16").ok().out


def served(cluster: Sandbox) -> str:
    """The name under which the model is served, once it is ready."""
    serving = cluster.vcluster("status", "--json").ok().json()["serving"]
    assert serving["phase"] == "ready"
    return str(serving["name"])


@pytest.mark.promise("P50")
@pytest.mark.cluster("serving", leaves="empty")
def test_another_request_replaces_it_a_rank_dies_and_it_is_rolled_back(cluster: Sandbox) -> None:
    nodes, said = cluster.nodes(), answer(cluster)
    key = cluster.vcluster("endpoint", "--key").ok().out.strip()
    with tunnel(cluster) as url, Asker(url, key, [MODEL, OTHER]) as replaced:
        # Each rank costs 13 s of processor time, here and after the kill; what comes back has four, on both hosts.
        fewer = ("--hosts", "gpu2", "--tp", "1", "--pp", "1")
        cluster.vcluster("serve", "--yes", MODEL, "--name", OTHER, *fewer, "--", "--dtype", "float32").ok()
        assert (served(cluster), answer(cluster)) == (OTHER, said)
    killed = time.time()
    kill = "kill -9 $(ps -eo pid,args | awk '/[R]ayWorkerProc/ { print $1; exit }')"
    cluster.docker("gpu2", "exec", nodes["gpu2"], "sh", "-c", kill)
    until_ready_again(cluster, killed, 240)
    assert (served(cluster), answer(cluster)) == (OTHER, said)
    with tunnel(cluster) as url, Asker(url, key, [MODEL, OTHER]) as rolled_back:
        cluster.vcluster("rollback", "--yes").ok()
        assert (served(cluster), answer(cluster)) == (MODEL, said)
    answered, later = replaced.answered + rolled_back.answered, replaced.later + rolled_back.later
    wrong = replaced.wrong + rolled_back.wrong
    figure = f"{answered} answers, {later} times 503 with Retry-After, {len(wrong)} else"
    held = not wrong and all(client.answered > 0 and client.later > 0 for client in (replaced, rolled_back))
    record("P50", "a client asks while `serve` replaces the model, and `rollback` brings it back", figure, held)
    assert held, wrong
    assert cluster.nodes() == nodes
    cluster.vcluster("down", "--yes").ok()
    for host in ("gpu1", "gpu2"):
        assert cluster.docker(host, "ps", "-aq", "--filter", "label=io.vcluster.cluster") == ""
        assert cluster.docker(host, "volume", "ls", "-q") == ""


RANKS = "ps -eo pid,args | awk '/[R]ayWorkerProc/ { print $1 }'"


def ranks(cluster: Sandbox) -> dict[str, int]:
    """How many ranks run on each host."""
    nodes = cluster.nodes()
    return {host: len(cluster.docker(host, "exec", nodes[host], "sh", "-c", RANKS).split()) for host in nodes}


@pytest.mark.deep
@pytest.mark.cluster("up", leaves="up")
def test_the_ranks_are_where_they_were_asked_for(cluster: Sandbox) -> None:
    """The head, which has GPUs and no rank, serves a model that is on the other host alone."""
    served = cluster.vcluster("serve", MODEL, "--hosts", "gpu2", "--tp", "1", "--pp", "1").ok()
    assert "leaves 3 of the 4 GPUs idle: 2 of gpu1, 1 of gpu2" in served.err
    assert ranks(cluster) == {"gpu1": 0, "gpu2": 1}
    key = cluster.vcluster("endpoint", "--key").ok().out.strip()
    with tunnel(cluster) as url:
        assert complete(url, key)
    cluster.docker("gpu2", "exec", cluster.nodes()["gpu2"], "sh", "-c", f"kill -9 $({RANKS})")

    def again() -> bool:
        serving = cluster.vcluster("status", "--json").json()["serving"]
        return bool(serving["attempt"] == 2 and serving["phase"] == "ready")

    until(again, 300)
    assert ranks(cluster) == {"gpu1": 0, "gpu2": 1}
    assert f"serve {MODEL} --hosts gpu2" in cluster.vcluster("status", "--history").ok().out
    cluster.vcluster("stop", "--yes").ok()
