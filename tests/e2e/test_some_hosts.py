"""`serve --hosts` with real Ray and vLLM: the ranks are on the named host, also after they were killed."""

from __future__ import annotations

import pytest

from tests.support.endpoint import MODEL, complete, tunnel
from tests.support.hosts import Sandbox
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.deep]
RANKS = "ps -eo pid,args | awk '/[R]ayWorkerProc/ { print $1 }'"


def ranks(cluster: Sandbox) -> dict[str, int]:
    """How many ranks run on each host."""
    nodes = cluster.nodes()
    return {host: len(cluster.docker(host, "exec", nodes[host], "sh", "-c", RANKS).split()) for host in nodes}


@pytest.mark.cluster("up", leaves="up")
def test_the_ranks_are_where_they_were_asked_for(cluster: Sandbox) -> None:
    """The head, which has GPUs and no rank, serves a model that is on the other host alone."""
    served = cluster.vcluster("serve", MODEL, "--hosts", "gpu2", "--tp", "1", "--pp", "1").ok()
    assert "1 of the 2 GPUs stay idle" in served.err
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
