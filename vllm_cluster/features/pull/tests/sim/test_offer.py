"""A model that hosts lack is pulled before anything is stopped for it, where a person wants it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.support.models import configs
from tests.support.sim import lab, make
from tests.support.sim.lab import Outcome
from tests.support.sim.world import World
from vllm_cluster.features.pull import offer as serve_pull
from vllm_cluster.kernel.errors import HostError, PreflightFailed, Unreachable
from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.hosts.connection import Fleet
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.pull import Held, HubModel
from vllm_cluster.kernel.plan.pull import plan_pull as plan_of
from vllm_cluster.serving import ask_head
from vllm_cluster.serving.serve import serve
from vllm_cluster.wire.pull import ModelFile
from vllm_cluster.wire.values import Url

INVENTORY = make.inventory(2)
LACKS = {"where": "hub", "weights": 10**9, "missing": 10**9, "free": 10**12}
OFFLINE = {"where": "nowhere", "problem": "it is not in the model cache, and HF_HUB_OFFLINE is set"}
HAS = {"where": "cache", "config": configs.LLAMA_8B, "weights": 10**9, "missing": 0, "proved": "d"}
MODEL = HubModel("org/other", "c" * 40, Url("http://hub"), (ModelFile("a.safetensors", 16 * 10**9, "a" * 64),))


def everywhere(files: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What the nodes answer where all hosts have the same."""
    return {name: {"files": files, "vllm": {}} for name in INVENTORY.hosts}


@pytest.fixture
def world() -> Iterator[World]:
    """A cluster that serves org/model; no host has org/other."""
    with lab.cluster(2, lab.do_up, lab.do_serve) as made:
        made.answers = everywhere(LACKS)
        yield made


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that has the model, and hosts that lack it."""
    monkeypatch.setattr(serve_pull, "find_model", lambda *_, **__: MODEL)
    monkeypatch.setattr(serve_pull, "statuses", lambda _: {})

    def plan(_hosts: object, model: HubModel, reference: str, via: str) -> Any:
        return plan_of(INVENTORY, model, reference, dict.fromkeys(INVENTORY.hosts, Held(free=10**13)), via)

    monkeypatch.setattr(serve_pull, "plan_for", plan)


@pytest.fixture
def brought(monkeypatch: pytest.MonkeyPatch, world: World) -> list[str]:
    """What is served at each pull, which brings the model."""
    served: list[str] = []

    def bring(hosts: Any, wanted: Any) -> None:
        served.append(serving(world))
        world.answers = everywhere(HAS)
        hosts.emit(Event("result", f"Pulled {wanted.name}."))

    monkeypatch.setattr(serve_pull, "bring_everywhere", bring)
    return served


def serving(world: World) -> str:
    """The model that the head serves."""
    status = lab.run(world, INVENTORY, lab.do_status).value
    return str(status.head.serve.name)


def ask(world: World, pull: bool | None, answer: bool = True, model: str = "org/other") -> tuple[Outcome, list[str]]:
    """`vcluster serve org/other`, and what it asked; to a pull the answer is this."""
    questions: list[str] = []

    def confirm(question: str) -> bool:
        questions.append(question)
        return answer if question.startswith("Pull") else True

    return lab.run(world, INVENTORY, partial(lab.do_serve, model=model, pull=pull, confirm=confirm)), questions


def texts(outcome: Outcome) -> list[str]:
    """What people read."""
    return [event.text for event in outcome.events]


def test_it_is_pulled_with_size_and_time_while_the_old_one_answers(world: World, hub: None, brought: list[str]) -> None:
    outcome, questions = ask(world, None)
    assert outcome.error is None, outcome.story()
    offer = "Pull org/other to gpu1, gpu2 first (16.0 GB)?"
    assert questions[0] == f"{offer} Otherwise each host downloads all of it."
    # All questions come before the pull, which may take hours.
    assert questions[1].startswith("No GPU is free: stop org/model (") and len(questions) == 2
    assert brought == ["org/model"] and serving(world) == "org/other"
    assert "org/other is as it was pulled on every host: serving offline" in texts(outcome)
    assert [event.kind for event in outcome.events if event.text.startswith("Pulled")] == ["note"]


def test_no_is_an_answer_and_hosts_download_by_themselves(world: World, hub: None, brought: list[str]) -> None:
    outcome, _ = ask(world, None, answer=False)
    assert outcome.error is None and brought == [] and serving(world) == "org/other"
    assert (
        "gpu1, gpu2: up to 1.0 GB are downloaded while it starts; vcluster pull org/other downloads them once"
        in texts(outcome)
    )


def test_without_a_terminal_nothing_is_asked_and_the_command_is_shown(
    world: World, monkeypatch: pytest.MonkeyPatch, brought: list[str]
) -> None:
    monkeypatch.setattr(serve_pull, "find_model", lambda *_, **__: pytest.fail("the hub was asked"))
    outcome, questions = ask(world, False)
    assert outcome.error is None and brought == [] and len(questions) == 1
    assert any("vcluster pull org/other" in text for text in texts(outcome))


def test_with_the_option_it_is_pulled_where_the_nodes_ask_no_hub(world: World, brought: list[str]) -> None:
    world.answers = everywhere(OFFLINE)
    outcome, questions = ask(world, True)
    assert outcome.error is None, outcome.story()
    assert brought == ["org/model"] and ["top org/model (" in question for question in questions] == [True]


def test_without_it_the_command_is_the_remedy(world: World) -> None:
    world.answers = everywhere(OFFLINE)
    outcome, _ = ask(world, None)
    assert isinstance(outcome.error, PreflightFailed)
    assert (outcome.error.hint or "").startswith("vcluster pull org/other\n")


def test_what_every_host_has_is_not_pulled(world: World, brought: list[str]) -> None:
    world.answers = everywhere(HAS)
    outcome, _ = ask(world, True)
    assert outcome.error is None and brought == [] and serving(world) == "org/other"


def test_a_pull_that_fails_stops_nothing(world: World, hub: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise HostError("gpu2", "pull: No space left on device")

    monkeypatch.setattr(serve_pull, "bring_everywhere", fail)
    outcome, _ = ask(world, None)
    assert str(outcome.error) == "gpu2: pull: No space left on device"
    assert serving(world) == "org/model"


def test_a_hub_that_does_not_answer_is_reported_and_serve_continues(
    world: World, hub: None, monkeypatch: pytest.MonkeyPatch, brought: list[str]
) -> None:
    def fail(*_: object, **__: object) -> HubModel:
        raise Unreachable("gpu1", "pull: cannot reach http://hub: refused")

    monkeypatch.setattr(serve_pull, "find_model", fail)
    outcome, _ = ask(world, None)
    assert outcome.error is None and brought == []
    assert "org/other cannot be pulled first: gpu1: pull: cannot reach http://hub: refused" in texts(outcome)


def test_after_a_pull_nothing_may_be_changed_without_the_lease(world: World, hub: None, brought: list[str]) -> None:
    allowed, fleets = list[bool](), list[Fleet]()
    write, pull_first = ask_head.ask_head, serve_pull.PullFirst

    def first(inventory: Inventory, fleet: Fleet, *rest: Any, **model: Any) -> Any:
        fleets.append(fleet)
        return pull_first(inventory, fleet, *rest, **model)

    def asked(*arguments: Any, **more: Any) -> int:
        allowed.extend(connection.may_change for connection in fleets[0].connections.values())
        return write(*arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serve_pull, "PullFirst", first)
        patch.setattr(serve, "ask_head", asked)
        outcome, _ = ask(world, None)
    assert outcome.error is None and brought and allowed == [False, False]


def test_a_folder_of_the_cache_is_served_by_the_path_that_vllm_reads(world: World) -> None:
    world.answers = everywhere({**HAS, "where": "folder"})
    outcome, _ = ask(world, None, model="./mine")
    assert outcome.error is None and serving(world) == "mine", outcome.story()
    assert "/models/mine is as it was pulled on every host: serving offline" in texts(outcome)
