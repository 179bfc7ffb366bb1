"""P32: Another team's inventory that shares hosts with the cluster: no verb of it changes anything of the cluster's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.attack import attack
from tests.support.breaks import everything
from tests.support.hosts import Sandbox

pytestmark = [pytest.mark.e2e, pytest.mark.promise, pytest.mark.deep]

VERBS = (
    ("plan",),
    ("up", "--yes"),
    ("serve", "--yes", "sandbox/tiny-llama"),
    ("stop", "--yes"),
    ("down", "--yes"),
)
# `down` of another name names that cluster and removes nothing.
REFUSED = ("plan", "up", "serve", "stop")
LOOKS = (("status",), ("check",))


def gpu2_alone(cluster: Sandbox, name: str) -> Path:
    """An inventory of gpu2 alone, its own head, for a cluster of this name."""
    (line,) = re.findall(r"^  gpu1: .*\n", cluster.inventory.read_text(), re.MULTILINE)
    return cluster.rewrite(Path(f"team-{name}.yaml"), replace=[(line, ""), ("cluster: sandbox", f"cluster: {name}")])


@pytest.mark.cluster("up")
@pytest.mark.parametrize("name", ["sandbox", "theirs"])
def test_no_verb_changes_another_team_s_cluster(cluster: Sandbox, name: str) -> None:
    before, found = cluster.nodes(), everything(cluster)
    volumes = cluster.docker("gpu2", "volume", "ls", "-q")
    theirs = gpu2_alone(cluster, name)
    kind = "of the same name" if name == "sandbox" else "of another name"
    with attack("P32", f"each verb of an inventory {kind} on a shared host") as measured:
        codes = {verb[0]: cluster.vcluster(*verb, inventory=theirs) for verb in VERBS}
        for verb in LOOKS:
            cluster.vcluster(*verb, inventory=theirs)
        assert {verb: codes[verb].code for verb in REFUSED} == dict.fromkeys(REFUSED, 3)
        assert "172.19.0.11" in codes["up"].err or "sandbox" in codes["up"].err, codes["up"].err
        assert (cluster.nodes(), everything(cluster)) == (before, found)
        assert cluster.docker("gpu2", "volume", "ls", "-q") == volumes
        assert cluster.vcluster("status", "--json").ok().json()["up"]
        told = ", ".join(f"{verb} exit {run.code}" for verb, run in codes.items())
        measured.figure = f"nothing of the other cluster changed; {told}"
