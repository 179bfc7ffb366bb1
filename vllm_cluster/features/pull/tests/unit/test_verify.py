"""What is damaged stays in its place until it is known from where it comes again."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import world
from vllm_cluster.features.pull import verify as pull_verify
from vllm_cluster.features.pull.hosts import PullHosts
from vllm_cluster.features.pull.plan import WantedModel
from vllm_cluster.features.pull.verify import Verified
from vllm_cluster.kernel.errors import PreflightFailed, Unreachable, UsageError
from vllm_cluster.kernel.plan.pull import HubModel
from vllm_cluster.wire.pull import ModelFile
from vllm_cluster.wire.values import Url

INVENTORY = world.inventory(2)
FILE = ModelFile("model.safetensors", 10**9, "a" * 64)


OTHER = ModelFile("tokenizer.json", 10**3, "b" * 64)


@pytest.fixture
def damaged() -> dict[str, ModelFile | None]:
    """The damaged file of each host, unless a test sets another."""
    return dict.fromkeys(INVENTORY.hosts, FILE)


@pytest.fixture
def did(monkeypatch: pytest.MonkeyPatch, damaged: dict[str, ModelFile | None]) -> list[str]:
    """What is done, in order; every host has a damaged file."""
    done: list[str] = []
    fleet: Any = SimpleNamespace(all=lambda _: {name: found(file) for name, file in damaged.items()})

    def found(file: ModelFile | None) -> Verified:
        return Verified("c" * 40, "d", 10**9, [FILE, OTHER], {file.path: "content differs"} if file else {})

    def ask_about(*_: object) -> HubModel:
        done.append("ask the hub")
        return HubModel("lab/model", "c" * 40, Url("http://hub"), (FILE,))

    def bring(_hosts: object, model: HubModel, *_: object, damaged: Mapping[str, set[str]]) -> bool:
        done.extend(f"drop on {name}" for name, paths in damaged.items() if paths == {FILE.path})
        done.append(f"bring{' from the hub' if model.endpoint.whole else ''}")
        return True

    hosts = PullHosts(INVENTORY, fleet, {}, lambda _: None)
    monkeypatch.setattr(pull_verify, "looked_at", lambda *_: nullcontext(hosts))
    monkeypatch.setattr(pull_verify, "refuse_running", lambda _: None)
    monkeypatch.setattr(pull_verify, "ask_about", ask_about)
    monkeypatch.setattr(pull_verify, "bring", bring)
    return done


def test_the_hub_is_asked_before_anything_is_taken_away(did: list[str]) -> None:
    pull_verify.verify(INVENTORY, lambda _: None, WantedModel("lab/model"))
    assert did[0] == "ask the hub" and did[-1] == "bring from the hub"
    assert sorted(did[1:-1]) == ["drop on gpu1", "drop on gpu2"]


def test_without_the_hub_nothing_is_taken_away(did: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> HubModel:
        raise Unreachable("gpu1", "pull: cannot reach http://hub")

    monkeypatch.setattr(pull_verify, "ask_about", fail)
    with pytest.raises(Unreachable):
        pull_verify.verify(INVENTORY, lambda _: None, WantedModel("lab/model"))
    assert did == []


def test_a_folder_that_is_damaged_everywhere_comes_from_where_it_came(did: list[str]) -> None:
    with pytest.raises(PreflightFailed, match=r"\./mine: no host has all of it undamaged; nothing") as refused:
        pull_verify.verify(INVENTORY, lambda _: None, WantedModel("./mine"))
    assert did == [] and refused.value.hint == "vcluster pull FOLDER --as mine"


def test_what_another_host_has_undamaged_comes_from_there(did: list[str], damaged: dict[str, ModelFile | None]) -> None:
    damaged["gpu2"] = None
    for name in ("lab/model", "./mine"):
        did.clear()
        pull_verify.verify(INVENTORY, lambda _: None, WantedModel(name))
        assert did == ["drop on gpu1", "bring"]


@pytest.mark.parametrize("name", ["./../../etc", "./hub/models--victim--m", "..", "a/../b"])
def test_a_name_that_leads_out_of_the_cache_is_refused(did: list[str], name: str) -> None:
    with pytest.raises(UsageError):
        pull_verify.verify(INVENTORY, lambda _: None, WantedModel(name))
    assert did == []
