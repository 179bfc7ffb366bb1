"""What is damaged stays in its place until it is known from where it comes again."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import world
from vllm_cluster.actions import pull_verify
from vllm_cluster.actions.pull_hosts import PullHosts
from vllm_cluster.actions.pull_plan import WantedModel
from vllm_cluster.actions.pull_verify import Verified
from vllm_cluster.core.pull import HubFile, HubModel
from vllm_cluster.errors import PreflightFailed, Unreachable

INVENTORY = world.inventory(2)
FILE = HubFile("model.safetensors", 10**9, "a" * 64)


@pytest.fixture
def did(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done, in order; every host has a damaged file."""
    done: list[str] = []
    fleet: Any = SimpleNamespace(all=lambda _: {name: found() for name in INVENTORY.hosts})

    def found() -> Verified:
        return Verified("c" * 40, "d", 10**9, [FILE], {FILE.path: "content differs"})

    def ask_about(*_: object) -> HubModel:
        done.append("ask the hub")
        return HubModel("lab/model", "c" * 40, "http://hub", (FILE,))

    def bring(*_: object) -> bool:
        done.append("bring")
        return True

    hosts = PullHosts(INVENTORY, fleet, {}, lambda _: None)
    monkeypatch.setattr(pull_verify, "looked_at", lambda *_: nullcontext(hosts))
    monkeypatch.setattr(pull_verify, "refuse_running", lambda _: None)
    monkeypatch.setattr(pull_verify, "ask_about", ask_about)
    monkeypatch.setattr(pull_verify, "_drop", lambda _hosts, name, *_: done.append(f"drop on {name}"))
    monkeypatch.setattr(pull_verify, "bring", bring)
    return done


def test_the_hub_is_asked_before_anything_is_taken_away(did: list[str]) -> None:
    pull_verify.verify(INVENTORY, lambda _: None, WantedModel("lab/model"))
    assert did[0] == "ask the hub" and did[-1] == "bring"
    assert sorted(did[1:-1]) == ["drop on gpu1", "drop on gpu2"]


def test_without_the_hub_nothing_is_taken_away(did: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> HubModel:
        raise Unreachable("gpu1", "pull: cannot reach http://hub")

    monkeypatch.setattr(pull_verify, "ask_about", fail)
    with pytest.raises(Unreachable):
        pull_verify.verify(INVENTORY, lambda _: None, WantedModel("lab/model"))
    assert did == []


def test_a_folder_that_is_damaged_everywhere_comes_from_where_it_came(did: list[str]) -> None:
    with pytest.raises(PreflightFailed, match=r"\./mine is damaged on every host; nothing was changed") as refused:
        pull_verify.verify(INVENTORY, lambda _: None, WantedModel("./mine"))
    assert did == [] and refused.value.hint == "vcluster pull FOLDER --as mine"
