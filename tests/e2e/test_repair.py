"""What breaks or is broken off is found, named and repaired by another `up`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.hosts import Sandbox
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.deep]


def counted(cluster: Sandbox) -> list[int]:
    """How many GPUs Ray counts on each host."""
    return [host["joined_gpus"] for host in cluster.vcluster("status", "--json").json()["hosts"]]


@pytest.mark.cluster("up")
def test_a_dead_container_is_started_again_and_no_other_touched(cluster: Sandbox) -> None:
    before = cluster.nodes()
    cluster.docker("gpu2", "kill", before["gpu2"])
    status = cluster.vcluster("status", "--json").json()
    assert (status["up"], status["hosts"][1]["state"]) == (False, "stopped")
    started = head_start(cluster)
    done = [event for event in cluster.vcluster("up", "--json").ok().events() if event["event"] == "done"]
    assert [(event["host"], event["operation"]) for event in done] == [("gpu2", "start")]
    assert cluster.nodes() == before
    assert head_start(cluster) == started


def head_start(cluster: Sandbox) -> str:
    """When the head's container last started."""
    return cluster.docker("gpu1", "inspect", "-f", "{{.State.StartedAt}}", cluster.nodes()["gpu1"])


@pytest.mark.cluster("up")
def test_a_container_that_ends_at_once_is_reported_with_its_last_lines(cluster: Sandbox) -> None:
    """With this variable Python finds none of its own modules, as in a broken image."""
    changed = [("environment: {", 'environment: {PYTHONHOME: "/nowhere", ')]
    broken = cluster.rewrite(Path("broken.yaml"), replace=changed)
    failed = cluster.vcluster("up", "--yes", "--json", inventory=broken)
    error = failed.event("error")
    assert failed.code == 1
    assert error["host"] == "gpu1"
    assert "exited with code" in error["message"]
    assert "Python" in error["message"]
    cluster.vcluster("up", "--yes").ok()
    assert counted(cluster) == [2, 2]


@pytest.mark.cluster("up")
def test_ray_that_counts_something_else_is_not_up(cluster: Sandbox) -> None:
    """A second raylet on gpu2 joins with a GPU that is not planned."""
    node = cluster.nodes()["gpu2"]
    intruder = "ray start --address=$RAY_ADDRESS --num-gpus=1 --node-ip-address=$VLLM_HOST_IP --min-worker-port=0"
    cluster.docker(
        "gpu2", "exec", node, "sh", "-c", f"{intruder} --max-worker-port=0 --node-manager-port=0 --temp-dir /tmp/x"
    )
    until(lambda: counted(cluster) == [2, 3])
    assert cluster.vcluster("status", "--json").json()["up"] is False
    cluster.docker("gpu2", "restart", node)
    until(lambda: counted(cluster) == [2, 2])


@pytest.mark.promise("P33")
@pytest.mark.cluster("up")
def test_the_api_key_survives_docker_rm(cluster: Sandbox) -> None:
    had = cluster.vcluster("endpoint", "--key").ok().out
    cluster.docker("gpu1", "rm", "-f", cluster.nodes()["gpu1"])
    events = cluster.vcluster("up", "--yes", "--json").ok().events()
    assert [event for event in events if event.get("code") == "new-api-key"] == []
    assert cluster.vcluster("endpoint", "--key").ok().out == had
    assert counted(cluster) == [2, 2]
