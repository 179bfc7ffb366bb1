"""A real cluster, broken one way at a time: what serve prints, and what explain and bundle find afterwards."""

from __future__ import annotations

import re
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.endpoint import MODEL
from tests.support.figures import record
from tests.support.hosts import Sandbox
from tests.support.waiting import until

pytestmark = pytest.mark.e2e


@pytest.mark.deep
@pytest.mark.cluster("up", leaves="plain")
def test_serve_names_what_is_known_and_guesses_nothing_from_earlier_failures(cluster: Sandbox) -> None:
    """With too little shared memory first; then a refusal that names its own cause, and a start that works."""
    small = cluster.rewrite(Path("small-shm.yaml"), replace=[("shm_size: 2g", "shm_size: 1m")])
    changed = Sandbox(cluster.folder, {**cluster.environment, "VCLUSTER_INVENTORY": str(small)})
    changed.vcluster("up", "--yes").ok()
    failed = changed.vcluster("serve", MODEL)
    assert (failed.code, "cause (shm-small)" in failed.err) == (1, True), failed.err
    found = changed.vcluster("explain", "--json").ok().json()
    assert (found["result"], found["cause"]["id"]) == ("explained", "shm-small")
    assert found["cause"]["lines"][0]["source"].startswith("gpu")
    refused = changed.vcluster("serve", MODEL, "--", "--no-such-flag")
    assert (refused.code, "shm-small" in refused.err) == (3, False), refused.err
    cluster.vcluster("up", "--yes").ok()
    cluster.vcluster("serve", MODEL, "--yes").ok()
    well = cluster.vcluster("explain", "--json").ok().json()
    assert (well["result"] in ("healthy", "healed"), well["cause"], well["symptom"]) == (True, None, None)


def served_by_attempt_after(sandbox: Sandbox, first: int) -> bool:
    """Whether a later attempt is ready: the first one is shown as ready until its end is seen."""
    serving = sandbox.vcluster("status", "--json").json()["serving"]
    return bool(serving["attempt"] > first and serving["phase"] == "ready")


@pytest.mark.deep
@pytest.mark.cluster("serving")
def test_a_rank_that_is_killed_is_found_and_a_cluster_that_is_well_has_no_failure(sandbox: Sandbox) -> None:
    well = sandbox.vcluster("explain", "--json").ok().json()
    assert (well["result"] in ("healthy", "healed"), well["cause"], well["symptom"]) == (True, None, None)
    first = sandbox.vcluster("status", "--json").ok().json()["serving"]["attempt"]
    kill = "kill -9 $(ps -eo pid,args | awk '/[R]ayWorkerProc/ { print $1; exit }')"
    sandbox.docker("gpu2", "exec", sandbox.nodes()["gpu2"], "sh", "-c", kill)
    said: list[dict[str, Any]] = []

    def symptom_is_shown() -> bool:
        said.append(sandbox.vcluster("explain", "--json").json())
        # Once vLLM has started again it is shown as past.
        return said[-1]["result"] == "symptom" or "rank-killed" in said[-1]["previous_attempts"]

    until(symptom_is_shown)
    found = said[-1]
    until(lambda: served_by_attempt_after(sandbox, first), 240)
    assert found["cause"] is None
    assert not found["symptom"] or found["symptom"]["id"] == "rank-killed"


@pytest.mark.deep
@pytest.mark.promise("P37", "P41")
@pytest.mark.cluster("empty", leaves="changed")
def test_rays_last_words_are_the_answer_within_seconds_when_it_does_not_start(cluster: Sandbox) -> None:
    """Ray ends of a setting that is not a number; the worker could never join, and no firewall is why."""
    words = ('{HF_HUB_OFFLINE: "1"}', '{HF_HUB_OFFLINE: "1", RAY_raylet_start_wait_time_s: "x"}')
    bad = cluster.rewrite(Path("ray-ends.yaml"), replace=[words])
    cluster = Sandbox(cluster.folder, {**cluster.environment, "VCLUSTER_INVENTORY": str(bad)})
    for _ in range(2):
        began = time.monotonic()
        failed = cluster.vcluster("up", "--yes")
        seconds = time.monotonic() - began
        assert failed.code == 1
        text = r"gpu1: Ray failed to start \d+ times; last output:\nray start ended with exit code"
        assert re.search(text, failed.err), failed.err
        assert "firewall" not in failed.err
    # The second one has nothing to make, and gives Ray one more start; the worker alone was waited for 153 s.
    assert seconds < 120, failed.err
    record("P37", "Ray ends again and again on the head: up", f"its last words after {seconds:.0f} s, exit 1", True)
    shown = {host["host"]: host["problem"] for host in cluster.vcluster("status", "--json").json()["hosts"]}
    assert "ray start ended with exit code" in shown["gpu1"]
    asked = cluster.vcluster("explain", "--json")
    assert (asked.code, asked.json()["result"], asked.json()["symptom"]) == (1, "unknown", None)
    assert any("ray start ended with exit code" in place["text"] for place in asked.json()["error_lines"])


@pytest.mark.cluster("up")
def test_a_bundle_of_real_hosts_holds_no_token(sandbox: Sandbox, tmp_path: Path) -> None:
    node = sandbox.nodes()["gpu1"]
    secrets = sandbox.docker("gpu1", "exec", node, "sh", "-c", "cat /run/secrets/vcluster/*-*").split()
    path = tmp_path / "report.tar.gz"
    sandbox.vcluster("explain", "--bundle", str(path)).ok()
    with tarfile.open(path) as tar:
        streams = [tar.extractfile(member) for member in tar]
        whole = b"".join(stream.read() for stream in streams if stream)
    assert b"raylet" in whole
    for word in secrets:
        assert word.encode() not in whole
