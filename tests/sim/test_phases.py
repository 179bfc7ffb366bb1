"""A verb goes through the phases of its tuple, and what `plan` shows between two stages is what `up` waits for."""

from __future__ import annotations

import importlib
import re
from functools import partial

import pytest

from tests.support.paths import ROOT
from tests.support.sim import lab, make
from tests.support.sim.lab import Outcome
from vllm_cluster.actions import check
from vllm_cluster.actions.down import DOWN
from vllm_cluster.actions.phases import compare_again, confirm, lock, unlock
from vllm_cluster.actions.rollback import ROLLBACK
from vllm_cluster.actions.serve import SERVE, bring
from vllm_cluster.actions.stop import STOP
from vllm_cluster.actions.up import UP
from vllm_cluster.core.plan import SecretsWritten
from vllm_cluster.run.barrier import hold
from vllm_cluster.run.observe import observe

INVENTORY = make.inventory(2)


def gone_through(outcome: Outcome) -> list[str]:
    """The phases, in order."""
    assert outcome.error is None, outcome.story()
    return [str(event.data["phase"]) for event in outcome.events if "seconds" in event.data and event.kind == "start"]


def names(phases: tuple[object, ...]) -> list[str]:
    """The phases of a tuple as events have them."""
    return [phase.__name__.replace("_", " ") for phase in phases]  # type: ignore[attr-defined]


@pytest.mark.parametrize("phases", [UP, SERVE, ROLLBACK, STOP, DOWN], ids=lambda phases: "+".join(names(phases)))
def test_what_changes_is_confirmed_then_leased_then_compared_again(phases: tuple[object, ...]) -> None:
    at = phases.index(lock)
    # A model that `serve` offered to pull comes before the lease: a pull takes long, and stops nothing.
    assert phases[:at][-2:] == (confirm, bring) if bring in phases else phases[at - 1] is confirm
    assert phases[at + 1] is compare_again
    assert phases.index(unlock) > at + 2, "something changes under the lease"


@pytest.mark.parametrize("name", ["SERVE", "ROLLBACK", "STOP", "DOWN", "CHECK"])
def test_the_page_of_the_architecture_shows_the_tuple(name: str) -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    shown = dict(re.findall(r"^([A-Z]+) = \((.+)\)$", page, re.MULTILINE))
    module = importlib.import_module(f"vllm_cluster.actions.{name.lower()}")
    rest = shown["ASK"].partition(", ")[2]
    written = shown[name].replace("*ASK[1:]", rest).replace("*ASK", shown["ASK"]).split(", ")
    assert written == [phase.__name__ for phase in getattr(module, name)]


def test_each_phase_of_check_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    # What runs on the hosts beside Docker is not played here.
    monkeypatch.setattr(check, "run_link_test", lambda *_: ([], []))
    monkeypatch.setattr(check, "observe", lambda inventory, link, deep: observe(inventory, link))
    monkeypatch.setattr(check, "look_inside", lambda *_, **__: [])
    world = make.world((2, 2))
    with lab.inside(world):
        assert gone_through(lab.run(world, INVENTORY, lab.verb(check.check))) == names(check.CHECK)


def test_each_phase_is_an_event() -> None:
    world = make.world((2, 2))
    with lab.inside(world):
        assert gone_through(lab.run(world, INVENTORY, lab.do_up)) == names(UP)
        assert gone_through(lab.run(world, INVENTORY, lab.do_up)) == names(UP)
        assert gone_through(lab.run(world, INVENTORY, lab.do_serve)) == names(SERVE)
        assert gone_through(lab.run(world, INVENTORY, partial(lab.do_serve, model="org/other"))) == names(SERVE)
        assert gone_through(lab.run(world, INVENTORY, lab.do_rollback)) == names(ROLLBACK)
        assert gone_through(lab.run(world, INVENTORY, lab.do_stop)) == names(STOP)
        assert gone_through(lab.run(world, INVENTORY, lab.do_down)) == names(DOWN)


def test_what_plan_shows_is_what_up_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    held = list[object]()

    def recorded(barrier: object, *rest: object) -> None:
        held.append(barrier)
        hold(barrier, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("vllm_cluster.run.execute.hold", recorded)
    world = make.world((2, 2))
    with lab.inside(world):
        shown = lab.run(world, INVENTORY, lab.do_plan).value
        assert lab.run(world, INVENTORY, lab.do_up).error is None
        barriers = [barrier for stage in shown.stages for barrier in stage.barriers]
        assert [barrier.type for barrier in barriers] == ["same-image", "secrets-written", "head-ready", "gpus-joined"]
        assert held == [barrier for barrier in barriers if not isinstance(barrier, SecretsWritten)]
        assert not any(stage.barriers for stage in lab.run(world, INVENTORY, lab.do_plan).value.stages)


@pytest.mark.parametrize("gpus", [(2, 2), (2,)], ids=["with a worker", "the head alone"])
def test_the_gpus_are_awaited_once(gpus: tuple[int, ...]) -> None:
    """By the stage that brings the last of them, else by `verify`: also where nothing is changed."""
    world, inventory = make.world(gpus), make.inventory(len(gpus))
    with lab.inside(world):
        for _ in range(2):
            events = lab.run(world, inventory, lab.do_up).events
            whole = f"GPUs {sum(gpus)}/{sum(gpus)}"
            assert [event.text for event in events if event.text.startswith(whole)] == [whole]
