"""P33: hosts leave, come back, and the head moves, all while a model is served."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.attack import attack
from tests.support.breaks import black_hole, root
from tests.support.endpoint import MODEL
from tests.support.hosts import Sandbox
from tests.support.served import BROKEN, cut_off_weights
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.promise, pytest.mark.deep]


def status(sandbox: Sandbox, inventory: Path) -> Any:
    """What `status` shows of an inventory."""
    return sandbox.vcluster("status", "--json", inventory=inventory).json()


def ready(sandbox: Sandbox, inventory: Path) -> bool:
    """Whether the cluster is up and its model answers."""
    found = status(sandbox, inventory)
    return bool(found["up"] and (found["serving"] or {}).get("phase") == "ready")


@pytest.mark.cluster("serving", leaves="own")
def test_a_host_leaves_and_returns_and_the_head_moves_and_returns(sandbox: Sandbox) -> None:
    both = sandbox.rewrite(Path("members-both.yaml"), add="head: gpu1\nbackend: ray\n")
    moved = sandbox.rewrite(Path("members-moved.yaml"), add="head: gpu2\n")
    (line,) = re.findall(r"^  gpu2: .*\n", both.read_text(), re.MULTILINE)
    left = both.with_name("members-left.yaml")
    left.write_text(both.read_text().replace(line, ""))
    key = sandbox.vcluster("endpoint", "--key", inventory=both).ok().out
    before = sandbox.nodes()
    with attack("P33", "gpu2 leaves, returns, becomes the head, and gpu1 again, while a model is served") as measured:
        assert "gpu2" in sandbox.vcluster("plan", inventory=left).ok().out
        asked = sandbox.vcluster("up", inventory=left)
        assert (asked.code, sandbox.nodes()) == (2, before), asked.err
        took = {}
        for name, inventory, hosts in (
            ("gpu2 left", left, {"gpu1"}),
            ("gpu2 back", both, {"gpu1", "gpu2"}),
            ("head on gpu2", moved, {"gpu1", "gpu2"}),
            ("head on gpu1", both, {"gpu1", "gpu2"}),
        ):
            measured.begin()
            sandbox.vcluster("up", "--yes", inventory=inventory).ok()
            assert set(sandbox.nodes()) == hosts, name
            until(partial(ready, sandbox, inventory), 240, every=2)
            took[name] = measured.seconds
            assert sandbox.vcluster("plan", "--exit-code", inventory=inventory).code == 0, name
            assert sandbox.vcluster("endpoint", "--key", inventory=inventory).ok().out == key, name
        sandbox.vcluster("down", "--yes", inventory=both).ok()
        assert sandbox.nodes() == {}
        measured.figure = "served again after " + ", ".join(f"{s:.0f} s ({name})" for name, s in took.items())


@pytest.mark.cluster("serving", leaves="own")
def test_members_change_after_a_serve_that_failed(sandbox: Sandbox) -> None:
    cut_off_weights(sandbox)
    moved = sandbox.rewrite(Path("members-instead.yaml"), add="head: gpu2\n")
    ((line, _),) = re.findall(r"^(  gpu1: .*?([\d.]+)}\n)", moved.read_text(), re.MULTILINE)
    alone = moved.with_name("members-instead-alone.yaml")
    alone.write_text(moved.read_text().replace(line, ""))
    with attack("P33 P36", "the head moves and the other host leaves, after a serve that failed") as measured:
        failed = sandbox.vcluster("serve", "--yes", BROKEN, "--", "--dtype", "float32")
        assert (failed.code, f"{MODEL} is served again" in failed.err) == (1, True), failed.err
        took = {}
        for name, inventory in (("moved", moved), ("left", alone)):
            measured.begin()
            sandbox.vcluster("up", "--yes", inventory=inventory).ok()
            until(partial(ready, sandbox, inventory), 240, every=2)
            took[name] = measured.seconds
            assert status(sandbox, inventory)["serving"]["model"] == MODEL, name
            assert sandbox.vcluster("plan", "--exit-code", inventory=inventory).code == 0, name
        # What failed was not tried again.
        history = sandbox.vcluster("status", "--history", "--json", inventory=alone).ok().json()["entries"]
        assert len([entry for entry in history if BROKEN in str(entry["operations"])]) == 1
        sandbox.vcluster("down", "--yes", inventory=alone).ok()
        assert sandbox.nodes() == {}
        measured.figure = "what was served in its place is served again after " + ", ".join(
            f"{seconds:.0f} s ({name})" for name, seconds in took.items()
        )


@pytest.mark.cluster("up", leaves="own")
def test_a_former_host_behind_a_black_hole_is_cleaned_by_hand_and_forgotten(sandbox: Sandbox) -> None:
    ((line, address),) = re.findall(r"^(  gpu2: .*?([\d.]+)}\n)", sandbox.inventory.read_text(), re.MULTILINE)
    # One host alone would need no Ray, and nothing would wait for what Ray reports of the other.
    alone = sandbox.rewrite(Path("members-alone.yaml"), replace=[(line, "")], add="backend: ray\n")
    with attack("P33 P18", "a host left the inventory, SSH does not reach it, and its node keeps running") as measured:
        with black_hole(sandbox, "gpu2"):
            refused = sandbox.vcluster("up", "--yes", inventory=alone)
            took = measured.seconds
            assert refused.code == 4, refused.err
            assert f"gpu2: Ray still reports its node at {address};" in refused.err
            assert took < 60
            (look,) = set(re.findall(r"look first, on gpu2: (sh -c .*?), then remove there ", refused.err))
            assert {*re.findall(r" id (\w+), head", root(sandbox, "gpu2", look))} == {status(sandbox, alone)["id"]}
            alone.write_text(f"{alone.read_text()}id: {status(sandbox, alone)['id']}\n")
            named = sandbox.vcluster("plan", inventory=alone).err
            (by_hand,) = set(re.findall(r"by hand, on gpu2: (.*?)\. If it is gone", named))
            root(sandbox, "gpu2", by_hand)
            label = "--filter label=io.vcluster.cluster=sandbox"
            assert not root(sandbox, "gpu2", f"docker ps -aq {label}; docker volume ls -q {label}")
            # Ray counts what was killed for up to 33 s.
            until(lambda: bool(status(sandbox, alone)["up"]), 60, every=2)
            said = sandbox.vcluster("up", "--yes", "--forget", "gpu2", inventory=alone).ok()
            assert "it is forgotten" in said.err
            measured.begin()
            again = sandbox.vcluster("up", inventory=alone).ok()
            assert "gpu2" not in again.err
            assert measured.seconds < 15
        measured.figure = f"exit 4 after {took:.0f} s with the commands; these were run, it was forgotten, up works"
    sandbox.vcluster("up", "--yes").ok()
