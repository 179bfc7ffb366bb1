"""Files of requests that the real vLLM answers, through a kill of the client."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.breaks import root
from tests.support.hosts import Sandbox
from tests.support.waiting import until
from vllm_cluster.features.batch.tests.made import answers, write_requests

pytestmark = pytest.mark.e2e


def rows(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def reach(output: Path, wanted: int, client: subprocess.Popen[str]) -> None:
    """Wait for so many answers of a client that still runs."""
    until(lambda: rows(output) >= wanted or client.poll() is not None, 1800, every=0.01)
    assert client.poll() is None, f"the batch ended by itself after {rows(output)} requests"


def kill_after(sandbox: Sandbox, source: Path, output: Path, more: int) -> None:
    """Kill a run when it has answered so many more requests, one by one: it has seconds of work left."""
    wanted = rows(output) + more
    client = sandbox.start("batch", str(source), "-o", str(output), "--json", "--concurrency", "1")
    try:
        reach(output, wanted, client)
        os.kill(client.pid, signal.SIGKILL)
    finally:
        client.kill()
        client.communicate(timeout=60)


@pytest.mark.cluster("serving")
def test_a_batch_that_was_killed_is_continued(cluster: Sandbox, tmp_path: Path) -> None:
    source, output = write_requests(tmp_path / "in.jsonl", 15, 16), tmp_path / "out.jsonl"
    kill_after(cluster, source, output, 1)
    with source.open("a") as file:
        file.write("not a request\n")
    done = cluster.vcluster("batch", str(source), "-o", str(output))
    assert (done.code, "1 request without an answer" in done.err) == (1, True)
    assert set(answers(output)) == {f"r{number}" for number in range(15)}
    assert '"line": 16' in (tmp_path / "out.errors.jsonl").read_text()
    # What is answered is not asked again, and neither is another input answered into the same file.
    again = cluster.vcluster("batch", str(source), "-o", str(output), "--json")
    assert again.event("result")["answered"] == 15
    other = cluster.vcluster("batch", str(source), "-o", str(output), "--set", "seed=1")
    assert (other.code, "holds the answers to another input" in other.err) == (2, True)


@pytest.mark.deep
@pytest.mark.cluster("serving")
def test_the_head_answers_a_batch_that_no_client_follows(cluster: Sandbox, tmp_path: Path) -> None:
    source, output = write_requests(tmp_path / "in.jsonl", 30, 16), tmp_path / "out.jsonl"
    command = ("batch", str(source), "-o", str(output), "--json")
    begun = cluster.vcluster(*command, "--detach").ok()
    assert (begun.event("result")["total"], begun.event("result")["host"]) == (30, "gpu1")
    assert cluster.vcluster(*command).ok().event("result")["answered"] == 30
    assert set(answers(output)) == {f"r{number}" for number in range(30)}
    left = cluster.on("gpu1", "sh", "-c", f"{IN} ls /var/lib/vcluster", root=True)
    assert "batch" not in left.split()


IN = "docker exec vcluster-sandbox"
RANK = ("gpu2", f"{IN} pkill -9 -f RayWorker")
ENDPOINT = ("gpu1", f"{IN} pkill -9 -f 'vllm serve'")
BATCH = "/var/lib/vcluster/batch"
# Of the batch's program on the head, a rank on the other host, the model, and the head's container.
HEAD_KILLS = (
    ("gpu1", f"{IN} sh -c 'kill -9 $(cat {BATCH}/*/pid)'"),
    RANK,
    ENDPOINT,
    ("gpu1", f"{IN} pkill -9 -f node.py"),
)


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.cluster("serving")
def test_a_batch_on_the_head_through_kills_of_all_that_takes_part(cluster: Sandbox, tmp_path: Path) -> None:
    """Each kill comes while the client follows, and takes the client with it: the answers are those of a calm run.

    Some seconds of work for each part: most of the time goes into the three starts of the model.
    """
    count = 120
    source, output = write_requests(tmp_path / "in.jsonl", count, 32), tmp_path / "out.jsonl"
    calm = tmp_path / "calm.jsonl"
    cluster.vcluster("-q", "batch", str(source), "-o", str(calm), "--concurrency", "4", seconds=1800).ok()
    command = ("-q", "batch", str(source), "-o", str(output), "--concurrency", "4")
    for host, kill in HEAD_KILLS:
        there = int(cluster.on("gpu1", "sh", "-c", f"{IN} sh -c 'cat {BATCH}/*/output.jsonl | wc -l'", root=True))
        client = cluster.start(*command)
        try:
            # More than what was open at the kill before: it is answered again.
            reach(output, there + 8, client)
        finally:
            client.kill()
            client.communicate(timeout=60)
        root(cluster, host, kill)
        assert rows(output) < count
    cluster.vcluster(*command, seconds=1800).ok()
    assert answers(output) == answers(calm)
    assert len(answers(output)) == count
