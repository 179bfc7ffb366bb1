"""Files of requests that the real vLLM answers, through a kill of the client."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.batches import answers, write_requests
from tests.support.hosts import Sandbox
from tests.support.waiting import until

pytestmark = pytest.mark.e2e


def rows(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_after(sandbox: Sandbox, source: Path, output: Path, more: int) -> None:
    """Kill a run at once when it has answered so many more requests."""
    wanted = rows(output) + more
    client = sandbox.start("batch", str(source), "-o", str(output), "--json", "--concurrency", "4")
    try:
        until(lambda: rows(output) >= wanted or client.poll() is not None, 120, every=0.01)
        assert client.poll() is None, "the batch ended before it was killed"
        os.kill(client.pid, signal.SIGKILL)
    finally:
        client.kill()
        client.communicate(timeout=60)


@pytest.mark.cluster("serving")
def test_a_batch_that_was_killed_is_continued(cluster: Sandbox, tmp_path: Path) -> None:
    source, output = write_requests(tmp_path / "in.jsonl", 30, 16), tmp_path / "out.jsonl"
    kill_after(cluster, source, output, 1)
    with source.open("a") as file:
        file.write("not a request\n")
    done = cluster.vcluster("batch", str(source), "-o", str(output))
    assert (done.code, "1 request without an answer" in done.err) == (1, True)
    assert set(answers(output)) == {f"r{number}" for number in range(30)}
    assert '"line": 31' in (tmp_path / "out.errors.jsonl").read_text()
    # What is answered is not asked again, and neither is another input answered into the same file.
    again = cluster.vcluster("batch", str(source), "-o", str(output), "--json")
    assert again.event("result")["answered"] == 30
    other = cluster.vcluster("batch", str(source), "-o", str(output), "--seed", "1")
    assert (other.code, "holds the answers to another input" in other.err) == (2, True)
