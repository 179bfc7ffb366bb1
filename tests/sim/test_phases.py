"""A verb goes through the phases of its tuple, and what `plan` shows between two stages is what `up` waits for."""

from __future__ import annotations

import pytest

from tests.support.sim import lab, make
from tests.support.sim.lab import Outcome
from vllm_cluster.actions.serve import ASK
from vllm_cluster.actions.up import UP
from vllm_cluster.core.plan import SecretsWritten
from vllm_cluster.run.barrier import hold

INVENTORY = make.inventory(2)


def gone_through(outcome: Outcome) -> list[str]:
    """The phases, in order."""
    assert outcome.error is None, outcome.story()
    return [str(event.data["phase"]) for event in outcome.events if "seconds" in event.data and event.kind == "start"]


def names(phases: tuple[object, ...]) -> list[str]:
    """The phases of a tuple as events have them."""
    return [phase.__name__.replace("_", " ") for phase in phases]  # type: ignore[attr-defined]


def test_each_phase_is_an_event() -> None:
    world = make.world((2, 2))
    with lab.inside(world):
        assert gone_through(lab.run(world, INVENTORY, lab.do_up)) == names(UP)
        assert gone_through(lab.run(world, INVENTORY, lab.do_up)) == names(UP)
        assert gone_through(lab.run(world, INVENTORY, lab.do_serve)) == names(ASK)


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
