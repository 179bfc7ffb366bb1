"""Two real hosts joined without Ray: both serve one model, which is started again for a lost rank; nothing is added."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.endpoint import MODEL, PROMPT
from tests.support.hosts import Sandbox
from tests.support.served import node_status
from tests.support.waiting import until

# One start of vLLM over two hosts is about a minute where others use the machine: too long for every run.
pytestmark = [pytest.mark.e2e, pytest.mark.deep]

RANK = "ps -eo pid,args | awk '/[V]LLM::Worker/ { print $1 }'"


def ranks(cluster: Sandbox) -> dict[str, str]:
    """The processes that are ranks, by host."""
    return {host: cluster.docker(host, "exec", node, "sh", "-c", RANK) for host, node in cluster.nodes().items()}


def attempt(cluster: Sandbox) -> int:
    """How often the model was started."""
    status = node_status(cluster)
    return int(status["serve"]["attempt"]) if status else 0


def images(cluster: Sandbox) -> dict[str, list[str]]:
    """What images each host has."""
    return {host: sorted(cluster.docker(host, "images", "-aq", "--no-trunc").split()) for host in ("gpu1", "gpu2")}


@pytest.mark.promise("P52")
@pytest.mark.cluster("empty", leaves="empty")
def test_two_hosts_serve_one_model_without_ray_and_a_lost_rank_starts_it_again(cluster: Sandbox) -> None:
    """TP=2 with one rank a host. Until it is ready again takes another minute: see tests/promises/test_parts.py."""
    one = [(f"gpu{n}: {{", f"gpu{n}: {{gpus: 1, ") for n in (1, 2)]
    cluster = cluster.by(cluster.rewrite(Path("without-ray.yaml"), replace=one, add="backend: mp\n"))
    before = images(cluster)
    cluster.vcluster("up", "--yes").ok()
    cluster.vcluster("serve", "--yes", MODEL, "--tp", "2", "--pp", "1").ok()
    assert cluster.vcluster("complete", PROMPT, "--max-tokens", "16").ok().out.strip()
    assert "ranks: 0 on gpu1, 1 on gpu2" in cluster.vcluster("status").ok().out
    second = cluster.vcluster("logs", "--only", "rank=1", "--json").ok().events()
    assert {(row["host"], row["rank"]) for row in second} == {("gpu2", 1)}
    nodes, first = cluster.nodes(), ranks(cluster)
    for host, node in nodes.items():
        assert "raylet" not in cluster.docker(host, "exec", node, "ps", "-eo", "args")
    cluster.docker("gpu2", "exec", nodes["gpu2"], "kill", "-9", *first["gpu2"].split())
    until(lambda: attempt(cluster) == 2, 30)
    until(lambda: not set(" ".join(ranks(cluster).values()).split()) & set(" ".join(first.values()).split()), 10)
    assert (cluster.nodes(), images(cluster)) == (nodes, before)
    cluster.vcluster("down", "--yes").ok()
