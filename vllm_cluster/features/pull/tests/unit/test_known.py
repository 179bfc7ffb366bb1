"""Which files a model has where the hub cannot be asked: those that a host has as they were pulled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import world
from vllm_cluster.features.pull import hosts as pull_hosts
from vllm_cluster.features.pull import known as pull_known
from vllm_cluster.features.pull import models as pull_models
from vllm_cluster.features.pull.hosts import PullHosts
from vllm_cluster.features.pull.hub_listing import NoSuchModel
from vllm_cluster.features.pull.known import find_model
from vllm_cluster.features.pull.models import near_cached
from vllm_cluster.features.pull.plan import WantedModel
from vllm_cluster.kernel.errors import PreflightFailed, Unreachable, VclusterError
from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.models.listed import CachedModel
from vllm_cluster.kernel.plan.pull import HubModel
from vllm_cluster.wire.pull import CacheManifest, CacheRow, ModelFile, digest_of

INVENTORY = world.inventory(2)
FILE = ModelFile("model.safetensors", 10, "a" * 64)
ONE, OTHER = "c" * 40, "d" * 40
WANTED = WantedModel("lab/model")
GONE = Unreachable("gpu1", "pull: cannot reach http://hub: refused", hint="use --via HOST")
Listed = Mapping[str, str]


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[HubModel, list[Event]]]:
    """What is found where the hub answers so, and the hosts have manifests of these commits."""

    def find(hub: VclusterError, listed: Listed, wanted: WantedModel = WANTED) -> tuple[HubModel, list[Event]]:
        events: list[Event] = []
        connections = {name: SimpleNamespace(name=name) for name in INVENTORY.hosts}

        def fail(*_: object, **__: object) -> HubModel:
            raise hub

        def answer(connection: Any, _inventory: object, _facts: object, asked: Any, _kind: object, *, see: Any) -> Any:
            assert asked["revision"] == wanted.revision
            commit = listed.get(connection.name, "")
            file = replace(FILE, size=len(commit) - 30)
            if commit:
                see(CacheRow(file=file))
            return CacheManifest(commit[:40] or wanted.revision, digest_of([file]) if commit else "")

        fleet: Any = SimpleNamespace(all=lambda work: {name: work(one) for name, one in connections.items()})
        monkeypatch.setattr(pull_known, "ask_about", fail)
        monkeypatch.setattr(
            pull_known, "near_cached", lambda _hosts, model: "lab/model" if model == "lab/modle" else None
        )
        monkeypatch.setattr(pull_hosts, "ask_cache", answer)
        hosts = PullHosts(INVENTORY, fleet, dict.fromkeys(INVENTORY.hosts, None), events.append)  # type: ignore[arg-type]
        return find_model(hosts, wanted, "gpu1"), events

    return find


def test_the_manifest_of_a_host_is_taken_and_reported(found: Any) -> None:
    model, events = found(GONE, {"gpu2": ONE})
    assert (model.commit, model.files, model.endpoint.whole) == (ONE, (FILE,), "")
    assert events[-1].text == f"{GONE.message}; the files are those of the manifest on gpu2"


# fault: features/pull/known.py: ensure_asked(wanted.revision, one.commit → ensure_asked("", one.commit
def test_a_manifest_of_another_commit_than_the_one_that_was_named_is_refused(found: Any) -> None:
    assert found(GONE, {"gpu2": ONE}, replace(WANTED, revision=ONE))[0].commit == ONE
    with pytest.raises(PreflightFailed, match=f"^gpu2: pull: the manifest of lab/model answers with commit {ONE} "):
        found(GONE, {"gpu2": ONE}, replace(WANTED, revision=OTHER))


def test_whoever_sets_the_hubs_own_variable_asks_no_hub(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    asked = AssertionError("the hub was asked")
    model, events = found(asked, {"gpu1": ONE, "gpu2": ONE})
    assert model.commit == ONE and events[-1].text.startswith("HF_HUB_OFFLINE is set here; ")
    with pytest.raises(PreflightFailed, match="no host has lab/model as it was pulled") as refused:
        found(asked, {})
    assert refused.value.hint == "unset HF_HUB_OFFLINE"


# fault: features/pull/known.py: raise _with_meant(hosts, wanted, error) from None → raise
# fault: features/pull/known.py: raise _with_meant(hosts, wanted, why) → raise why
@pytest.mark.parametrize("kind", [Unreachable, NoSuchModel])
def test_a_misspelt_name_is_answered_with_the_model_of_the_hosts(found: Any, kind: Any) -> None:
    """The other fixes would fetch the slip."""
    error = kind(*("gpu1",) * (kind is Unreachable), "pull: the hub has none", hint="hf download lab/modle")
    with pytest.raises(kind) as refused:
        found(error, {}, replace(WANTED, model="lab/modle", revision="v2"))
    assert (refused.value.instead, refused.value.hint) == ({"lab/modle@v2": "lab/model@v2"}, None)


# fault: features/pull/known.py: except NoSuchModel as error: → except PreflightFailed as error:
def test_the_remedy_for_a_gated_model_is_not_another_model(found: Any) -> None:
    """A host's cache would choose the model that is pulled next."""
    with pytest.raises(PreflightFailed) as refused:
        found(PreflightFailed("gated", hint="open PAGE"), {}, replace(WANTED, model="lab/modle"))
    assert (refused.value.instead, refused.value.hint) == ({}, "open PAGE")


def test_hosts_with_different_revisions_are_reported_with_their_commits(found: Any) -> None:
    with pytest.raises(PreflightFailed, match=f"gpu1: {ONE[:12]}; gpu2: {OTHER[:12]}") as refused:
        found(GONE, {"gpu1": ONE, "gpu2": OTHER})
    assert refused.value.hint == f"vcluster pull lab/model@{ONE}\nvcluster pull lab/model@{OTHER}"


# fault: features/pull/known.py: if len({one.commit for one in found.values()}) < → if 99 <
def test_a_host_that_lists_other_files_of_the_commit_is_not_believed(found: Any) -> None:
    """What one lists would become the files of all."""
    with pytest.raises(PreflightFailed, match="gpu1, gpu2 have different files of lab/model"):
        found(GONE, {"gpu1": ONE, "gpu2": ONE + "x"})


def test_where_no_host_has_it_the_hubs_answer_is_the_error(found: Any) -> None:
    with pytest.raises(Unreachable, match=r"refused$"):
        found(GONE, {})


# fault: features/pull/models.py: if REPOSITORY.fullmatch(one)] → ]
# fault: features/pull/models.py: agreed(listed, hosts.inventory.head_name) → model_names({*listed["gpu1"], *listed["gpu2"]})
# fault: features/pull/models.py: there = model_names(itertools.chain(*listed.values())) → there = tuple(itertools.chain(*listed.values()))
@pytest.mark.parametrize(
    ("on_head", "on_worker", "meant", "asked_about"),
    [
        ("lab/model", "lab/modlee", "lab/model", "lab/modlee"),
        ("org/x", "lab/model", None, "lab/model"),
        ("lab/model", "lab/model", "lab/model", "lab/model"),
        *((name, name, None, None) for name in ("-ilab/modle", "--as=lab/modle", "gpu2:/lab/modle", "./../lab/modle")),
        ("~/lab/modle/../../.docker", "~/lab/modle/../../.docker", None, None),
        ("./lab/modle", "./lab/modle", None, "./lab/modle"),
    ],
)
def test_a_cache_names_only_repositories_to_pull(
    on_head: str, on_worker: str, meant: str | None, asked_about: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of a cache that anybody made was an option in the remedy, or a folder of the laptop that is sent."""
    names = {"gpu1": on_head, "gpu2": on_worker}
    monkeypatch.setattr(pull_models, "cached", lambda _, connection: (CachedModel(names[connection], "", 0, None, ""),))
    fleet: Any = SimpleNamespace(all=lambda work, hosts=None: {name: work(name) for name in hosts or names})
    hosts = PullHosts(INVENTORY, fleet, {}, print)
    assert near_cached(hosts, "lab/modle") == meant
    assert near_cached(hosts, "lab/modle", ["gpu1", "gpu2"]) == asked_about
