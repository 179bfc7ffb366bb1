"""A real cluster, broken one way at a time: what serve says, and what explain and bundle find afterwards."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.endpoint import MODEL
from tests.support.hosts import Sandbox
from tests.support.waiting import until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def cluster(sandbox: Sandbox) -> Iterator[Sandbox]:
    """The sandbox with little shared memory, for one of the failures."""
    small = sandbox.rewrite(Path("small-shm.yaml"), replace=[("shm_size: 2g", "shm_size: 1m")])
    found = Sandbox(sandbox.folder, {"VCLUSTER_INVENTORY": str(small)})
    found.vcluster("down", "--yes").ok()
    found.vcluster("up", "--yes").ok()
    yield found
    found.vcluster("down", "--yes").ok()


@pytest.mark.parametrize(
    ("row", "argv"),
    [
        ("60", ["nobody/no-such-model"]),
        ("47", [MODEL, "--", "--hf-overrides", '{"architectures": ["HrmTextForCausalLM"]}']),
        ("28", [MODEL]),
    ],
)
def test_serve_says_the_cause_and_explain_says_it_again(cluster: Sandbox, row: str, argv: list[str]) -> None:
    failed = cluster.vcluster("serve", *argv)
    assert failed.code == 1
    assert f"the cause (failure {row})" in failed.err
    found = cluster.vcluster("explain", "--json").ok().json()
    assert (found["verdict"], found["cause"]["failure"]) == ("explained", row)
    assert found["cause"]["lines"][0]["source"].startswith("gpu")
    cluster.vcluster("stop", "--yes").ok()


def test_what_is_not_known_is_not_guessed_from_earlier_failures(cluster: Sandbox) -> None:
    failed = cluster.vcluster("serve", MODEL, "--", "--no-such-flag")
    assert failed.code == 1
    assert "unrecognized arguments: --no-such-flag" in failed.err
    assert "cause (failure" not in failed.err
    asked = cluster.vcluster("explain", "--json")
    assert (asked.code, asked.json()["verdict"]) == (1, "unknown")
    assert set(asked.json()["earlier"]) >= {"60", "47", "28"}


def test_a_rank_that_is_killed_is_found_and_a_cluster_that_is_well_has_no_failure(sandbox: Sandbox) -> None:
    sandbox.vcluster("up", "--yes").ok()
    sandbox.vcluster("serve", MODEL).ok()
    well = sandbox.vcluster("explain", "--json").ok().json()
    assert (well["verdict"], well["cause"]) == ("nothing", None)
    kill = "kill -9 $(ps -eo pid,args | awk '/[R]ayWorkerProc/ { print $1; exit }')"
    sandbox.docker("gpu2", "exec", sandbox.nodes()["gpu2"], "sh", "-c", kill)
    said: list[dict[str, Any]] = []

    def told() -> bool:
        said.append(sandbox.vcluster("explain", "--json").json())
        # Once vLLM has started again it is told as past.
        return said[-1]["verdict"] == "explained" or "40" in said[-1]["earlier"]

    until(told)
    found = said[-1]
    assert not found["cause"] or (found["cause"]["failure"], found["cause"]["certain"]) == ("40", False)


def test_a_bundle_of_real_hosts_holds_no_token(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.vcluster("up", "--yes").ok()
    node = sandbox.nodes()["gpu1"]
    secrets = sandbox.docker("gpu1", "exec", node, "sh", "-c", "cat /run/secrets/vcluster/*-*").split()
    path = tmp_path / "report.tar.gz"
    sandbox.vcluster("bundle", "--anonymous", "-o", str(path)).ok()
    with tarfile.open(path) as tar:
        streams = [tar.extractfile(member) for member in tar]
        whole = b"".join(stream.read() for stream in streams if stream)
    assert b"raylet" in whole
    for word in (*secrets, "gpu1", "gpu2"):
        assert word.encode() not in whole
