"""Whose pull runs, and what becomes of one that another person ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import world
from vllm_cluster.features.pull import action
from vllm_cluster.features.pull.follow import PullEnd
from vllm_cluster.features.pull.hosts import PullHosts
from vllm_cluster.features.pull.plan import WantedModel
from vllm_cluster.kernel.errors import Locked, VclusterError
from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.hosts.runtime import SYSTEM
from vllm_cluster.kernel.models import cache as model_cache
from vllm_cluster.kernel.models import weights
from vllm_cluster.kernel.models.weights import PullStatus
from vllm_cluster.kernel.plan.pull import Held, HubModel, plan_pull
from vllm_cluster.wire.pull import ModelFile, digest_of
from vllm_cluster.wire.values import Url

INVENTORY = world.inventory(2)
FILES = (ModelFile("model.safetensors", 10**9, "a" * 64),)
MODEL = HubModel("lab/model", "c" * 40, Url("http://hub"), FILES)
RUNS = PullStatus("downloading", model="lab/model", commit=MODEL.commit, reference="main")


def look_on(monkeypatch: pytest.MonkeyPatch, revision: str, held: Held, ended: Mapping[str, PullStatus]) -> list[Event]:
    """The events of a second person who asks for a revision while `RUNS`, which ends so."""
    events: list[Event] = []
    fleet: Any = SimpleNamespace()
    hosts = PullHosts(INVENTORY, fleet, {}, events.append)
    plan = plan_pull(INVENTORY, MODEL, "main", dict.fromkeys(INVENTORY.hosts, held), "gpu1")
    monkeypatch.setattr(action, "statuses", lambda _: {"gpu1": RUNS, "gpu2": RUNS})
    monkeypatch.setattr(action, "follow", lambda *_, **__: PullEnd(ended, (), 1.0))
    monkeypatch.setattr(action, "remove_pull", lambda *_: None)
    monkeypatch.setattr(action, "find_model", lambda *_: MODEL)
    monkeypatch.setattr(action, "plan_for", lambda *_, **__: plan)
    # Of a fleet that can start nothing.
    assert action._bring_once(hosts, WantedModel("lab/model", revision))
    return events


GONE = dict.fromkeys(INVENTORY.hosts, PullStatus("gone"))


def test_one_that_another_person_stopped_is_not_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(VclusterError, match="the pull of lab/model was stopped; what arrived is kept"):
        look_on(monkeypatch, "", Held(), GONE)


def test_one_that_another_person_saw_end_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    events = look_on(monkeypatch, "", Held(whole=1, bytes=MODEL.size, digest="d"), GONE)
    assert events[-1].text.startswith("lab/model is on all 2 hosts")


@pytest.mark.parametrize("revision", ["v2", "d" * 40])
def test_another_revision_waits_for_the_one_that_runs(monkeypatch: pytest.MonkeyPatch, revision: str) -> None:
    with pytest.raises(Locked, match="lab/model is being pulled to gpu1, gpu2"):
        look_on(monkeypatch, revision, Held(), GONE)


@pytest.mark.parametrize("left", [0, 1], ids=["the same files", "another folder"])
def test_a_folder_is_compared_with_what_another_person_has_brought(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, left: int
) -> None:
    """Both are called the same on the hosts."""
    ended = dict.fromkeys(INVENTORY.hosts, PullStatus("done", model="./two", digest="d", total=10))
    looks = iter([dict.fromkeys(INVENTORY.hosts, PullStatus("downloading", model="./two")), {}])
    events: list[Event] = []
    connections = {name: SimpleNamespace(name=name) for name in INVENTORY.hosts}
    fleet: Any = SimpleNamespace(
        runtime=SYSTEM, connections=connections, all=lambda work, names: [work(connections[name]) for name in names]
    )
    held = Held() if left else Held(whole=1, bytes=MODEL.size, digest="d")
    plan = plan_pull(INVENTORY, MODEL, "", dict.fromkeys(INVENTORY.hosts, held), "gpu1")
    monkeypatch.setattr(action, "statuses", lambda _: next(looks))
    monkeypatch.setattr(action, "follow", lambda *_, **__: PullEnd(ended, (), 1.0))
    monkeypatch.setattr(action, "remove_pull", lambda *_: None)
    monkeypatch.setattr(action, "find_model", lambda *_: MODEL)
    monkeypatch.setattr(action, "plan_for", lambda *_, **__: plan)
    for name in ("ensure_room", "ensure_ports"):
        monkeypatch.setattr(action, name, lambda *_: None)
    begun: list[str] = []
    monkeypatch.setattr(weights, "create", lambda *_: True)
    monkeypatch.setattr(weights, "begin", lambda connection, *_: begun.append(connection.name))
    hosts = PullHosts(INVENTORY, fleet, dict(world.hosts(2)), events.append)
    wanted = WantedModel("./two", "", "", source=tmp_path)
    assert not action._bring_once(hosts, wanted)
    assert "result" not in [event.kind for event in events]
    action._bring_once(hosts, wanted)
    assert begun == [*INVENTORY.hosts] * left
    assert [event.kind for event in events].count("result") == 1


# fault: features/pull/action.py: if proved and proved.result() == → if proved and proved.result() !=
@pytest.mark.parametrize("different", ["", "commit", "digest", "host"])
def test_what_every_host_has_is_known_by_one_look(monkeypatch: pytest.MonkeyPatch, different: str) -> None:
    """Asked while the hub is asked; nothing else is then asked of a host."""
    digest = "d" * 64 if different == "digest" else digest_of(FILES)
    row = {"end": True, "commit": "e" * 40 if different == "commit" else MODEL.commit, "digest": digest}
    asked: list[str] = []
    connections = {name: SimpleNamespace(name=name, runtime=SYSTEM) for name in INVENTORY.hosts}

    @contextmanager
    def running(connection: Any, _inventory: object, _facts: object, question: Any) -> Iterator[Any]:
        asked.append(question["do"])
        found = {**row, "digest": ""} if different == "host" and connection.name == "gpu2" else row
        yield SimpleNamespace(next=lambda _: found)

    fleet: Any = SimpleNamespace(runtime=SYSTEM, all=lambda work: {n: work(one) for n, one in connections.items()})
    events: list[Event] = []
    planned: list[object] = []

    def bring(*given: object) -> bool:
        planned.append(given)
        return True

    monkeypatch.setattr(model_cache, "running", running)
    monkeypatch.setattr(action, "statuses", lambda _: {})
    monkeypatch.setattr(action, "find_model", lambda *_: MODEL)
    monkeypatch.setattr(action, "bring", bring)
    assert action._bring_once(
        PullHosts(INVENTORY, fleet, dict(world.hosts(2)), events.append), WantedModel("lab/model")
    )
    assert (asked, bool(planned)) == (["look", "look"], bool(different))
    if not different:
        assert [event.text for event in events] == [
            "lab/model is on all 2 hosts: cccccccccccc, 1 file, 1.0 GB. Nothing was changed."
        ]


def test_the_commit_that_runs_may_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Held(whole=1, bytes=MODEL.size, digest="d")
    assert look_on(monkeypatch, MODEL.commit, whole, GONE)[-1].kind == "result"


@pytest.mark.parametrize(("wanted", "stopped"), [("", True), ("lab/model", True), ("lab/other", False)])
def test_only_the_pull_that_is_meant_is_stopped(monkeypatch: pytest.MonkeyPatch, wanted: str, stopped: bool) -> None:
    removed: list[object] = []
    fleet: Any = SimpleNamespace()
    hosts = PullHosts(INVENTORY, fleet, {}, lambda _: None)
    monkeypatch.setattr(action, "looked_at", lambda *_: nullcontext(hosts))
    monkeypatch.setattr(action, "statuses", lambda _: {"gpu1": RUNS})
    monkeypatch.setattr(action, "remove_pull", lambda _, names: removed.append(names))
    with nullcontext() if stopped else pytest.raises(Locked, match="No pull of lab/other runs: lab/model is being"):
        action.cancel_pull(INVENTORY, lambda _: None, wanted)
    assert bool(removed) == stopped


@pytest.mark.parametrize("token", ["hf_secret", None])
def test_only_the_first_host_gets_the_token(monkeypatch: pytest.MonkeyPatch, token: str | None) -> None:
    begun: dict[str, object] = {}
    connections = {name: SimpleNamespace(name=name) for name in INVENTORY.hosts}

    def each(work: Any, names: tuple[str, ...]) -> None:
        for name in names:
            work(connections[name])

    fleet: Any = SimpleNamespace(connections=connections, runtime=SYSTEM, all=each)
    hosts = PullHosts(INVENTORY, fleet, dict(world.hosts(2)), lambda _: None)
    monkeypatch.setattr(weights, "create", lambda *_: True)
    monkeypatch.setattr(weights, "begin", lambda one, _cluster, _plan, given: begun.update({one.name: given}))
    plan = plan_pull(INVENTORY, MODEL, "main", dict.fromkeys(INVENTORY.hosts, Held()), "gpu1")
    assert action._start(hosts, plan, token)
    assert begun == {"gpu1": token, "gpu2": None}
