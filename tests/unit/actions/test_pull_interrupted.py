"""The containers of a pull whose maker has ended before they were started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import world
from vllm_cluster.actions import pull as action
from vllm_cluster.actions.pull_hosts import PullHosts, statuses
from vllm_cluster.actions.pull_plan import WantedModel
from vllm_cluster.core.pull import MAKER, PULLED, Held, HubFile, HubModel, make
from vllm_cluster.core.spec import CLUSTER
from vllm_cluster.errors import CommandFailed
from vllm_cluster.laptop import whoami
from vllm_cluster.run.detached import start_time
from vllm_cluster.run.runtime import SYSTEM
from vllm_cluster.run.weights import CONFLICT

INVENTORY = world.inventory(2)
MODEL = HubModel("lab/model", "c" * 40, "http://hub", (HubFile("model.safetensors", 10**9, "a" * 64),))
PLAN = make(INVENTORY, MODEL, "main", dict.fromkeys(INVENTORY.hosts, Held()), "gpu1")


class Docker:
    """A host's Docker as far as a pull's container needs it; `interrupted` at its create, after it was made."""

    def __init__(self, labels: dict[str, str] | None = None, *, interrupted: bool = False) -> None:
        self.labels, self.interrupted = labels, interrupted
        self.started = False

    def container_info(self, _name: str) -> dict[str, Any] | None:
        state = {"Status": "running" if self.started else "created"}
        return None if self.labels is None else {"Id": "1", "State": state, "Config": {"Labels": self.labels}}

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
    connections = {name: SimpleNamespace(name=name, engine=one, runtime=SYSTEM) for name, one in pairs}

    def each(work: Any, names: Any = tuple(INVENTORY.hosts)) -> dict[str, Any]:
        return {name: work(connections[name]) for name in names}

    fleet: Any = SimpleNamespace(connections=connections, runtime=SYSTEM, all=each)
    return PullHosts(INVENTORY, fleet, dict(world.hosts(2)), lambda _: None)


def labels(pid: int, started: str | None, who: str = "") -> dict[str, str]:
    """Those of a container that a process has made."""
    made_by = json.dumps([who or whoami(), pid, started])
    return {CLUSTER: INVENTORY.cluster, PULLED: json.dumps(PLAN.pulled), MAKER: made_by}


def ended() -> tuple[int, str | None]:
    """A process of this machine that has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        found = process.pid, start_time(process.pid)
    assert found[1]
    return found


def test_a_pull_that_is_interrupted_while_its_containers_are_made_leaves_none() -> None:
    """Docker has made the last one, and its answer did not arrive."""
    hosts = hosts_with(first := Docker(), second := Docker(interrupted=True))
    with pytest.raises(KeyboardInterrupt):
        action._start(hosts, PLAN, None)
    assert first.labels is None and second.labels is None


def test_a_container_of_another_pull_is_left_to_it() -> None:
    other = labels(os.getpid(), start_time(os.getpid()), "her@laptop")
    hosts = hosts_with(first := Docker(), second := Docker(other))
    assert not action._start(hosts, PLAN, None)
    assert first.labels is None and second.labels == other


# fault: run/weights.py: _has_ended(labels.get(MAKER, "")) → not labels
def test_a_pull_that_was_killed_before_it_began_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second Ctrl-C ends a command at once; the same command begins again."""
    hosts = hosts_with(left := Docker(labels(*ended())), Docker())
    begun: list[object] = []

    def bring(*_: object) -> bool:
        begun.append(left.labels)
        return True

    monkeypatch.setattr(action, "find_model", lambda *_: MODEL)
    monkeypatch.setattr(action, "bring", bring)
    monkeypatch.setattr(action, "follow", lambda *_, **__: pytest.fail("it is waited for"))
    assert action._bring_once(hosts, WantedModel("lab/model"))
    assert begun == [None]


@pytest.mark.parametrize("who", ["", "her@laptop"], ids=["it is alive", "of another machine"])
def test_a_container_that_may_be_started_yet_is_waited_for(who: str) -> None:
    pid = os.getpid() if not who else ended()[0]
    found = statuses(hosts_with(Docker(labels(pid, start_time(os.getpid()), who)), Docker()))
    assert (found["gpu1"].phase, found["gpu1"].over) == ("starting", False)


def test_what_stops_names_the_model_of_a_pull_that_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    hosts = hosts_with(left := Docker(labels(*ended())), Docker())
    monkeypatch.setattr(action, "looked_at", lambda *_: nullcontext(hosts))
    action.cancel(INVENTORY, lambda event: events.append(event.text))
    assert left.labels is None
    assert events == ["Stopped the pull of lab/model. What arrived is kept."]
