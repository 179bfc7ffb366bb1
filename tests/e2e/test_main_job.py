"""Up, serve, answer, stop, down, on two hosts with real sshd, real Docker, real Ray and real vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.endpoint import MODEL, PROMPT, TOKENS, alone, complete, status_code, tunnel
from tests.support.figures import record
from tests.support.hosts import Sandbox
from tests.support.paths import ROOT, VCLUSTER
from vllm_cluster.serving.node.start_movement import STEPS

pytestmark = pytest.mark.e2e


@pytest.mark.cluster("empty")
def test_plan_changes_nothing_and_its_exit_code_shows_changes(cluster: Sandbox) -> None:
    before = {host: cluster.docker(host, "ps", "-aq") for host in ("gpu1", "gpu2")}
    planned = cluster.vcluster("plan", "--exit-code", "--json")
    assert planned.code == 10
    stages = {stage["title"]: stage["operations"] for stage in planned.json()["stages"]}
    assert [op["host"] for op in stages["head"]] == ["gpu1"]
    assert [op["host"] for op in stages["workers"]] == ["gpu2"]
    assert {host: cluster.docker(host, "ps", "-aq") for host in ("gpu1", "gpu2")} == before


@pytest.mark.cluster("fresh", leaves="up")
def test_up_adds_ray_to_an_image_and_counts_every_gpu(cluster: Sandbox) -> None:
    up = cluster.vcluster("up", "--json").ok()
    notes = [event["message"] for event in up.events() if event["event"] == "note"]
    if any(event.get("operation") == "prepare image" for event in up.events()):
        assert any("has no Ray: adding ray==2.56.1" in note for note in notes)
    assert up.event("result")["gpus"] == 4
    assert cluster.docker("gpu2", "images", "-q", "vcluster-node").strip()
    status = cluster.vcluster("status", "--json").ok().json()
    assert status["up"] is True
    assert [(host["state"], host["joined_gpus"]) for host in status["hosts"]] == [("running", 2), ("running", 2)]


@pytest.mark.promise("P2")
@pytest.mark.cluster("up")
def test_up_again_changes_nothing(cluster: Sandbox) -> None:
    before = cluster.nodes()
    again = cluster.vcluster("up", "--json").ok().event("result")
    assert cluster.nodes() == before
    assert again["operations"] == 0
    assert sorted(again["round_trips"].values()) == [6, 7]  # the head is asked for its members
    assert cluster.vcluster("plan", "--exit-code").code == 0
    figure = "0 operations, the same container ids, 7 round trips a host"
    record("P2", "up again on a cluster that is up", figure, True)


@pytest.mark.cluster("up")
def test_the_other_transport_finds_nothing_to_do(cluster: Sandbox) -> None:
    words = [("{config: ssh_config}", "{config: ssh_config, transport: openssh}")]
    openssh = cluster.rewrite(Path("openssh.yaml"), replace=words)
    result = cluster.vcluster("up", "--json", inventory=openssh).ok().event("result")
    assert result["operations"] == 0
    assert (result["round_trips"]["gpu1"], result["round_trips"]["gpu2"]) == (7, 6)  # the head is asked for its members


@pytest.mark.cluster("up", leaves="serving")
def test_serve_ends_when_the_model_is_ready_behind_its_key(cluster: Sandbox) -> None:
    served = cluster.vcluster("serve", MODEL, "--json", "--", "--dtype", "float32").ok()
    last = [event for event in served.events() if "phases" in event][-1]
    assert (last["phase"], last["message"].partition(" after ")[0]) == ("ready", "ready")
    phases = [phase for phase, _ in last["phases"] if phase != "waiting"]
    assert phases == sorted(phases, key=STEPS.index)
    assert {"importing", "joining", "loading", "probing"} <= set(phases)
    key = cluster.vcluster("endpoint", "--key").ok().out.strip()
    with tunnel(cluster) as url:
        assert status_code(f"{url}/health") == 200
        assert [status_code(f"{url}/{path}") for path in ("v1/models", "metrics", "tokenize")] == [401, 401, 401]
        assert status_code(f"{url}/v1/models", "wrong") == 401
        assert status_code(f"{url}/v1/models", key) == 200


@pytest.mark.deep
@pytest.mark.cluster("serving")
def test_four_ranks_on_two_hosts_answer_as_one_process_does(cluster: Sandbox) -> None:
    one, key = alone(cluster, "float32"), cluster.vcluster("endpoint", "--key").ok().out.strip()
    with tunnel(cluster) as url:
        assert complete(url, key) == one.text
    greedy = ("--temperature", "0", "--max-tokens", str(TOKENS), "--logprobs", "1", "--json")
    (answer,) = cluster.vcluster("complete", PROMPT, *greedy).ok().json()["answers"]
    # The same to the rounding of float32 sums, whose order differs with the layout.
    assert [row["logprob"] for row in answer["logprobs"]] == pytest.approx(one.logprobs, abs=1e-3)


@pytest.mark.deep
@pytest.mark.cluster("serving")
def test_the_printed_line_to_ask_works(cluster: Sandbox) -> None:
    again = cluster.vcluster("serve", MODEL, "--", "--dtype", "float32").ok()
    (line,) = [line.removeprefix("ask:") for line in again.out.splitlines() if line.startswith("ask:")]
    path = f"{VCLUSTER.parent}:{os.environ['PATH']}"
    environment = {**os.environ, **cluster.environment, "PATH": path}
    said = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, env=environment, timeout=120, check=True
    )
    assert said.stdout.strip()


@pytest.mark.deep
@pytest.mark.cluster("serving", leaves="up")
def test_stop_ends_serving_and_leaves_the_cluster(cluster: Sandbox) -> None:
    before = cluster.nodes()
    assert cluster.vcluster("stop", "--yes", "--json").ok().event("result")["stopped"] is True
    status = cluster.vcluster("status", "--json").ok().json()
    assert (status["up"], status["serving"]) == (True, None)
    assert cluster.nodes() == before
    assert cluster.vcluster("stop", "--yes", "--json").ok().event("result")["stopped"] is False


@pytest.mark.deep
@pytest.mark.cluster("up", leaves="own")
def test_a_changed_layout_touches_what_changed_and_serves_the_same_words(cluster: Sandbox) -> None:
    """One GPU a host: then the two stages of PP=2 are on two hosts, and bf16 can be compared."""
    text = Path(cluster.environment["VCLUSTER_INVENTORY"]).read_text()
    smaller = cluster.folder / "one-gpu.yaml"
    lines = [line.replace("}", ", gpus: 1}") if "address:" in line else line for line in text.splitlines()]
    smaller.write_text("\n".join(lines) + "\n")
    one = Sandbox(cluster.folder, {**cluster.environment, "VCLUSTER_INVENTORY": str(smaller)})
    refused = one.vcluster("up")
    assert refused.code == 2
    assert "would stop the running nodes on gpu1, gpu2 of" in refused.err
    one.vcluster("up", "--yes").ok()
    exposed = one.vcluster("serve", MODEL, "--expose", "--json").ok().event("endpoint")
    key = one.vcluster("endpoint", "--key").ok().out.strip()
    words = alone(one, "auto").text
    # On its private network the head now answers without a tunnel, still only to those who have the key.
    assert exposed["exposed"] is True
    assert complete(exposed["url"].removesuffix("/v1"), key) == words
    assert status_code(f"{exposed['url']}/models") == 401
    with tunnel(one) as url:
        assert complete(url, key) == words


@pytest.mark.deep
@pytest.mark.cluster("served", leaves="empty")
def test_another_laptop_needs_the_inventory_alone(cluster: Sandbox, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", ROOT, checkout], check=True, timeout=60)
    environment = {**cluster.environment, "HOME": str(tmp_path), "PYTHONPATH": str(checkout)}
    program = [sys.executable, "-m", "vllm_cluster"]

    def there(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*program, *argv],
            capture_output=True,
            text=True,
            cwd=checkout,
            env={**os.environ, **environment},
            timeout=120,
            check=False,
        )

    status = there("status", "--json")
    assert json.loads(status.stdout)["serving"]["phase"] == "ready"
    down = there("down", "--yes", "--json")
    assert (down.returncode, down.stderr) == (0, "")
    for host in ("gpu1", "gpu2"):
        assert cluster.docker(host, "ps", "-aq", "--filter", "label=io.vcluster.cluster") == ""
        assert cluster.docker(host, "volume", "ls", "-q") == ""
        assert "vcluster" not in cluster.on(host, "ls", "/tmp")
