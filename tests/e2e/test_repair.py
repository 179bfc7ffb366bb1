"""What breaks or is broken off is found, named and repaired by another `up`."""

from __future__ import annotations

import json
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


@pytest.mark.cluster("up")
def test_more_gpus_than_there_are_is_refused_before_anything_is_touched(cluster: Sandbox) -> None:
    before = cluster.nodes()
    wrong = cluster.rewrite(Path("wrong.yaml"))
    text = "\n".join(
        line.replace("}", ", gpus: 3}") if line.strip().startswith("gpu2:") else line
        for line in wrong.read_text().splitlines()
    )
    wrong.write_text(text + "\n")
    refused = cluster.vcluster("up", inventory=wrong)
    assert refused.code == 3
    assert "gpu2: 2 logical GPUs found, inventory expects 3" in refused.err
    assert "hosts.gpu2.gpus" in refused.err
    assert cluster.nodes() == before


@pytest.mark.cluster("empty", leaves="up")
def test_up_killed_in_the_middle_is_finished_by_another_up(cluster: Sandbox) -> None:
    """After each of its events in tests/promises/test_crash.py."""
    process = cluster.start("up", "--json")
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["message"].startswith("create head"):
            break
    else:
        raise AssertionError("up never created the head")
    process.kill()
    process.communicate(timeout=30)
    cluster.vcluster("up", "--yes", "--wait", "30").ok()
    assert counted(cluster) == [2, 2]
    for host in ("gpu1", "gpu2"):
        assert len(cluster.docker(host, "ps", "-aq", "--filter", "label=io.vcluster.cluster").split()) == 1


@pytest.mark.cluster("up")
def test_the_group_comes_back_by_itself_when_ray_dies_on_a_worker(cluster: Sandbox) -> None:
    node = cluster.nodes()["gpu2"]
    before = alive(cluster)
    cluster.docker("gpu2", "exec", node, "pkill", "-9", "raylet")
    until(lambda: alive(cluster) != before)
    cluster.vcluster("up").ok()
    assert cluster.nodes()["gpu2"] == node
    assert counted(cluster) == [2, 2]


def alive(cluster: Sandbox) -> set[str]:
    """The ids of Ray's living nodes; a raylet that comes back has a new one."""
    said = cluster.docker("gpu1", "exec", cluster.nodes()["gpu1"], "python3", "/opt/vcluster/node.py", "status")
    return {node["id"] for node in json.loads(said)["group"]["nodes"] if node["alive"]}


@pytest.mark.promise("P33")
@pytest.mark.cluster("up")
def test_the_api_key_survives_docker_rm(cluster: Sandbox) -> None:
    had = cluster.vcluster("endpoint", "--key").ok().out
    cluster.docker("gpu1", "rm", "-f", cluster.nodes()["gpu1"])
    events = cluster.vcluster("up", "--yes", "--json").ok().events()
    assert [event for event in events if event.get("code") == "new-api-key"] == []
    assert cluster.vcluster("endpoint", "--key").ok().out == had
    assert counted(cluster) == [2, 2]
