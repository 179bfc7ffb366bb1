"""What `plan` shows between two stages is what `up` waits for."""

from __future__ import annotations

import pytest

from tests.support.sim import lab, make
from vllm_cluster.kernel.apply.execute import PlanExecution
from vllm_cluster.kernel.plan.plan import Barrier

INVENTORY = make.inventory(2)


def test_what_plan_shows_is_what_up_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    held, before = list[Barrier](), PlanExecution._hold

    def recorded(execution: PlanExecution, barrier: Barrier) -> None:
        held.append(barrier)
        before(execution, barrier)

    monkeypatch.setattr(PlanExecution, "_hold", recorded)
    world = make.world((2, 2))
    with lab.inside(world):
        shown = lab.run(world, INVENTORY, lab.do_plan).value
        assert lab.run(world, INVENTORY, lab.do_up).error is None
        barriers = [barrier for stage in shown.stages for barrier in stage.barriers]
        assert [barrier.type for barrier in barriers] == ["same-image", "secrets-written", "head-ready", "gpus-joined"]
        assert held == barriers
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
