"""The containers of a pull that is interrupted before they are started."""

from __future__ import annotations

import json
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import world
from vllm_cluster.features.pull import action
from vllm_cluster.features.pull.hosts import PullHosts
from vllm_cluster.kernel.errors import CommandFailed
from vllm_cluster.kernel.facts.docker_objects import ContainerInfo
from vllm_cluster.kernel.hosts.runtime import SYSTEM
from vllm_cluster.kernel.models.weights import CONFLICT
from vllm_cluster.kernel.plan.pull import MAKER, PULLED, Held, HubModel, plan_pull
from vllm_cluster.kernel.plan.spec import CLUSTER
from vllm_cluster.wire.pull import ModelFile
from vllm_cluster.wire.values import Url

INVENTORY = world.inventory(2)
MODEL = HubModel("lab/model", "c" * 40, Url("http://hub"), (ModelFile("model.safetensors", 10**9, "a" * 64),))
PLAN = plan_pull(INVENTORY, MODEL, "main", dict.fromkeys(INVENTORY.hosts, Held()), "gpu1")


class Docker:
    """A host's Docker as far as a pull's container needs it; `interrupted` at its create, after it was made."""

    def __init__(self, labels: dict[str, str] | None = None, *, interrupted: bool = False) -> None:
        self.labels, self.interrupted = labels, interrupted
        self.started = False

    def container_info(self, _name: str) -> ContainerInfo | None:
        state = "running" if self.started else "created"
        return None if self.labels is None else ContainerInfo("1", state, "0001-01-01T00:00:00Z", labels=self.labels)

    def read_file(self, *_: object) -> bytes | None:
        return None

    def create(self, _name: str, body: dict[str, Any]) -> None:
        if self.labels is not None:
            raise CommandFailed("gpu1", "the name is in use", exit_code=CONFLICT, stderr="")
        self.labels = body["Labels"]
        if self.interrupted:
            raise KeyboardInterrupt

    def put_files(self, *_: object) -> None: ...

    def start(self, _name: str) -> None:
        self.started = True

    def remove(self, _id: str, *, grace: int) -> None:
        self.labels = None


def hosts_with(*dockers: Docker) -> PullHosts:
    """Hosts with these."""
    pairs = zip(INVENTORY.hosts, dockers, strict=True)
    connections = {name: SimpleNamespace(name=name, docker=one, runtime=SYSTEM) for name, one in pairs}

    def each(work: Any, names: Any = tuple(INVENTORY.hosts)) -> dict[str, Any]:
        return {name: work(connections[name]) for name in names}

    fleet: Any = SimpleNamespace(connections=connections, runtime=SYSTEM, all=each)
    return PullHosts(INVENTORY, fleet, dict(world.hosts(2)), lambda _: None)


LABELS = {CLUSTER: INVENTORY.cluster, PULLED: json.dumps(PLAN.pulled), MAKER: "another"}


def test_a_pull_that_is_interrupted_while_its_containers_are_made_leaves_none() -> None:
    """Docker has made the last one, and its answer did not arrive."""
    hosts = hosts_with(first := Docker(), second := Docker(interrupted=True))
    with pytest.raises(KeyboardInterrupt):
        action._start(hosts, PLAN, None)
    assert first.labels is None and second.labels is None


def test_a_container_of_another_pull_is_left_to_it() -> None:
    hosts = hosts_with(first := Docker(), second := Docker(LABELS))
    assert not action._start(hosts, PLAN, None)
    assert first.labels is None and second.labels == LABELS


def test_what_stops_names_the_model_of_a_pull_that_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    hosts = hosts_with(left := Docker(LABELS), Docker())
    monkeypatch.setattr(action, "looked_at", lambda *_: nullcontext(hosts))
    action.cancel_pull(INVENTORY, lambda event: events.append(event.text))
    assert left.labels is None
    assert events == ["Stopped the pull of lab/model. What arrived is kept."]
