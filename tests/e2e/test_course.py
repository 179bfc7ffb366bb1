"""The life of a cluster on real hosts: what it serves loses a rank, is replaced, rolled back, and all is removed."""

from __future__ import annotations

import time

import pytest

from tests.support.endpoint import MODEL, PROMPT
from tests.support.hosts import Sandbox
from tests.support.served import until_ready_again

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


@pytest.mark.cluster("serving", leaves="empty")
def test_a_rank_dies_another_request_replaces_it_and_is_rolled_back(cluster: Sandbox) -> None:
    nodes, said = cluster.nodes(), answer(cluster)
    killed = time.time()
    kill = "kill -9 $(ps -eo pid,args | awk '/[R]ayWorkerProc/ { print $1; exit }')"
    cluster.docker("gpu2", "exec", nodes["gpu2"], "sh", "-c", kill)
    until_ready_again(cluster, killed, 240)
    assert (served(cluster), answer(cluster)) == (MODEL, said)
    cluster.vcluster("serve", "--yes", MODEL, "--name", OTHER, "--", "--dtype", "float32").ok()
    assert (served(cluster), answer(cluster)) == (OTHER, said)
    cluster.vcluster("rollback", "--yes").ok()
    assert (served(cluster), answer(cluster)) == (MODEL, said)
    assert cluster.nodes() == nodes
    cluster.vcluster("down", "--yes").ok()
    for host in ("gpu1", "gpu2"):
        assert cluster.docker(host, "ps", "-aq", "--filter", "label=io.vcluster.cluster") == ""
        assert cluster.docker(host, "volume", "ls", "-q") == ""
