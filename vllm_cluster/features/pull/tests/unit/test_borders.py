"""What leaves this machine for a pull, and what hosts answer: a token stays here, and no row of theirs is believed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import world
from tests.support.clock import Clock
from vllm_cluster.features.pull import action as pull
from vllm_cluster.features.pull import known as pull_known
from vllm_cluster.features.pull import plan as pull_plan
from vllm_cluster.features.pull import verify as pull_verify
from vllm_cluster.features.pull.hosts import PullHosts
from vllm_cluster.features.pull.plan import WantedModel
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import HostError, TimedOut
from vllm_cluster.kernel.facts.docker_objects import ContainerInfo
from vllm_cluster.kernel.hosts.runtime import SYSTEM
from vllm_cluster.kernel.models import cache as model_cache
from vllm_cluster.kernel.models import weights
from vllm_cluster.kernel.plan.pull import Held, HubModel, plan_pull
from vllm_cluster.wire.pull import CacheManifest, ModelFile, digest_of
from vllm_cluster.wire.values import Url

INVENTORY = world.inventory(2)
FILE = ModelFile("model.safetensors", 10**9, "a" * 64)
MODEL = HubModel("lab/model", "c" * 40, Url("http://hub"), (FILE,))
CANARY = "hf_canary"


@pytest.fixture(params=["variable", "file"])
def mine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This machine has a token of its own, as its shell or `hf auth login` keeps it."""
    for name in ("HF_TOKEN", "HF_ENDPOINT", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    if request.param == "variable":
        monkeypatch.setenv("HF_TOKEN", CANARY)
    else:
        (tmp_path / "token").write_text(CANARY)


class Sent:
    """All that leaves for hosts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, held: Mapping[str, Held] | None = None) -> None:
        self.to_hosts: list[str] = []
        self.held = held or {}
        monkeypatch.setattr(pull_plan, "locate_cache", lambda *_: None)
        monkeypatch.setattr(pull_plan, "ask_hub", lambda _host, _place, row: self._note(row))
        monkeypatch.setattr(weights, "create", lambda *_: True)
        monkeypatch.setattr(weights, "begin", lambda _host, _cluster, plan, token: self._note([plan, token]))
        monkeypatch.setattr(pull, "follow", lambda *_, **__: SimpleNamespace(hosts={}, lost=(), failed=0))
        for name in ("remove_pull", "ensure_ports", "_report"):
            monkeypatch.setattr(pull, name, lambda *_: None)
        monkeypatch.setattr(pull, "plan_for", self._plan)

    def _note(self, row: object) -> HubModel:
        self.to_hosts.append(json.dumps(row, default=asdict))
        return MODEL

    def _plan(
        self, hosts: PullHosts, model: HubModel, reference: str, via: str, _damaged: object, *, named: bool
    ) -> object:
        held = {name: self.held.get(name, Held(free=10**12)) for name in hosts.inventory.hosts}
        return plan_pull(hosts.inventory, model, reference, held, via, named=named)


@pytest.fixture
def hosts() -> PullHosts:
    connections = {name: SimpleNamespace(name=name, runtime=SYSTEM) for name in INVENTORY.hosts}

    def each(work: Any, names: Any = None) -> dict[str, Any]:
        return {name: work(connections[name]) for name in names or connections}

    fleet: Any = SimpleNamespace(connections=connections, runtime=SYSTEM, all=each)
    return PullHosts(INVENTORY, fleet, dict(world.hosts(2)), lambda _: None)


# fault: serving/fit/fit.py: have: the inventory's alone.""" → have."""; return laptop_token(inventory)
@pytest.mark.usefixtures("mine")
def test_the_token_of_this_machine_goes_to_no_host(hosts: PullHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Sent(monkeypatch)
    wanted = WantedModel("lab/model")
    model = pull_known.find_model(hosts, wanted, "gpu1")
    assert pull.bring(hosts, model, "main", wanted, "gpu1")
    pull_verify._from_origin(hosts, wanted, MODEL, "gpu1")
    assert len(sent.to_hosts) == 4
    assert not any(CANARY in text for text in sent.to_hosts)


def test_a_host_gets_the_token_of_the_inventory(hosts: PullHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Sent(monkeypatch)
    monkeypatch.setenv("LAB_TOKEN", "hf_lab")
    inventory = world.inventory(2, hf_token="env:LAB_TOKEN")
    given = PullHosts(inventory, hosts.fleet, hosts.facts, hosts.emit)
    wanted = WantedModel("lab/model")
    assert pull.bring(given, pull_known.find_model(given, wanted, "gpu1"), "main", wanted, "gpu1")
    assert ["hf_lab" in text for text in sent.to_hosts] == [True, True, False]


# fault: kernel/plan/pull.py: else inventory.hf_token is not None → else False
@pytest.mark.parametrize("via", ["", "gpu1"])
def test_a_host_that_shows_that_it_has_all_gets_no_token_and_the_one_that_downloads_does(
    hosts: PullHosts, monkeypatch: pytest.MonkeyPatch, via: str
) -> None:
    """By its own word it became the source, and was refused by the hub where one of its files was damaged."""
    sent = Sent(monkeypatch, {"gpu2": Held(whole=len(MODEL.files), free=10**12)})
    monkeypatch.setenv("LAB_TOKEN", "hf_lab")
    inventory = world.inventory(2, hf_token="env:LAB_TOKEN")
    all_ = PullHosts(inventory, hosts.fleet, hosts.facts, hosts.emit)
    wanted = WantedModel("lab/model", via=via)
    assert pull.bring(all_, pull_known.find_model(all_, wanted, "gpu1"), "main", wanted, "gpu1")
    given = [text for text in sent.to_hosts[1:] if "hf_lab" in text]
    assert ['"me": "gpu1"' in text for text in given] == [True]


def answers(monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]], end: dict[str, Any]) -> None:
    """Every host prints these rows."""

    @contextmanager
    def running(*_: object) -> Iterator[Any]:
        left = iter([*rows, {"end": True, **end}])
        yield SimpleNamespace(next=lambda _: next(left))

    monkeypatch.setattr(model_cache, "running", running)


RIGHT = {"commit": "c" * 40, "digest": digest_of([FILE]), "bytes": 1}


# fault: kernel/models/cache.py: (end.digest != digest_of(files) or not ( → (not (
@pytest.mark.parametrize(
    ("row", "end"),
    [
        ({**vars(FILE), "path": "../../../models--victim--m/x"}, RIGHT),
        ({**vars(FILE), "size": -1}, RIGHT),
        ({**vars(FILE), "blob": "../x"}, RIGHT),
        (vars(FILE), {**RIGHT, "digest": "d" * 64}),
        (vars(FILE), {**RIGHT, "commit": "../x"}),
    ],
)
def test_a_manifest_of_a_host_is_looked_at(
    hosts: PullHosts, monkeypatch: pytest.MonkeyPatch, row: dict[str, Any], end: dict[str, Any]
) -> None:
    wanted = WantedModel("lab/model")
    for read in (
        lambda: pull_known._listed(hosts, wanted),
        lambda: pull_verify._verified(hosts, hosts.fleet.connections["gpu1"], wanted),
    ):
        answers(monkeypatch, [{"file": vars(FILE)}], RIGHT)
        read()
        answers(monkeypatch, [{"file": row}], end)
        with pytest.raises(HostError, match="the model cache"):
            read()
    answers(monkeypatch, [{"file": vars(FILE)}, {"damaged": {**row, "why": "missing"}}], end)
    with pytest.raises(HostError):
        pull_verify._verified(hosts, hosts.fleet.connections["gpu1"], wanted)


@contextmanager
def status_of(row: dict[str, Any]) -> Iterator[weights.PullStatus]:
    """What is believed of a status."""
    info = ContainerInfo("1", "running", "2026-11-21T02:00:00Z")
    docker = SimpleNamespace(container_info=lambda _: info, read_file=lambda *_: json.dumps(row).encode())
    connection: Any = SimpleNamespace(docker=docker)
    yield weights.status(connection, "lab")


# fault: kernel/models/weights.py: 0 <= value <= MAX_SIZE → 0 <= value
def test_a_status_of_a_host_becomes_no_command() -> None:
    row = {"v": 1, "phase": "downloading", "model": "org/m; touch PWNED #", "bytes": "x", "total": -1}
    with status_of({**row, "reference": "$(touch X)", "error": "\x1b[2J", "source": "yes"}) as found:
        assert found == weights.PullStatus("downloading", error="\\x1b[2J")
    with status_of({"v": 1, "phase": "failed", "error": "a: https://bob:geheim@hub sends less"}) as found:
        assert found.error == "a: https://hub sends less"
    with status_of({**row, "model": "org/m", "reference": "refs/pr/3", "bytes": 3}) as found:
        assert (found.name, found.bytes, found.total) == ("org/m@refs/pr/3", 3, 0)
    with status_of({**row, "v": True, "model": "org/m"}) as found:
        assert found == weights.PullStatus("starting")
    with status_of({**row, "bytes": 10**400, "total": 10**400}) as found:
        assert (found.bytes, found.total) == (0, 0)


# fault: kernel/models/weights.py: if row.get("phase") in get_args(PullPhase) else {} → if row.get("phase") else {}
@pytest.mark.parametrize("phase", ["gone", "serving2", "", "DONE", ["done"], {"done": 1}, None, 1])
def test_a_phase_that_no_program_has_is_not_believed(phase: object) -> None:
    """`gone` least of all: it is what this machine calls a container that is not there."""
    with status_of({"v": 1, "phase": phase, "bytes": 3}) as found:
        assert found == weights.PullStatus("starting", bytes=3)


# fault: kernel/models/cache.py: due.move(seen.bytes + rows) → due = MovingDeadline(STILL_SECONDS, after(MAX_SECONDS))
@pytest.mark.promise("P46")
@pytest.mark.parametrize(
    ("do", "row", "most"),
    [("list", {"file": vars(FILE)}, 1900), ("verify", {"bytes": 1, "total": 2}, 1000), ("look", {"bytes": 0}, 1900)],
)
def test_a_cache_that_drips_is_not_waited_for_without_end(
    hosts: PullHosts, monkeypatch: pytest.MonkeyPatch, do: str, row: dict[str, Any], most: float
) -> None:
    """A line each minute put off the limit of a line without end."""
    clock = Clock()

    def after(seconds: float) -> Deadline:
        return Deadline.after(seconds, clock)

    @contextmanager
    def running(*_: object) -> Iterator[Any]:
        def line(due: Any) -> object:
            assert clock.now < 100_000
            if due.left() < 60:
                raise TimedOut("gpu1", "its program did not answer in time")
            clock.sleep(60)
            return row

        yield SimpleNamespace(next=line)

    monkeypatch.setattr(model_cache, "running", running)
    connection: Any = SimpleNamespace(name="gpu1", runtime=SimpleNamespace(after=after))
    with pytest.raises(TimedOut):
        model_cache.ask_cache(connection, INVENTORY, hosts.facts["gpu1"], {"do": do}, CacheManifest)
    assert clock.now < most
