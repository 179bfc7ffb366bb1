"""P33: hosts leave, come back, and the head moves, all while a model is served."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.attack import attack
from tests.support.hosts import Sandbox
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
    both = sandbox.rewrite(Path("members-both.yaml"), add="head: gpu1\n")
    moved = sandbox.rewrite(Path("members-moved.yaml"), add="head: gpu2\n")
    (line,) = re.findall(r"^  gpu2: .*\n", both.read_text(), re.MULTILINE)
    left = both.with_name("members-left.yaml")
    left.write_text(both.read_text().replace(line, ""))
    key = sandbox.vcluster("key", inventory=both).ok().out
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
            until(partial(ready, sandbox, inventory), 180)
            took[name] = measured.seconds
            assert sandbox.vcluster("plan", "--exit-code", inventory=inventory).code == 0, name
            assert sandbox.vcluster("key", inventory=inventory).ok().out == key, name
        sandbox.vcluster("down", "--yes", inventory=both).ok()
        assert sandbox.nodes() == {}
        measured.figure = "served again after " + ", ".join(f"{s:.0f} s ({name})" for name, s in took.items())
