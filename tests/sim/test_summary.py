"""What `up` shows before it asks: what it removes by name, and hosts with the same to do in one line; and what
becomes of the model that is served, which --yes would hide.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.support.sim import lab, make
from tests.support.sim.lab import Outcome
from tests.support.sim.world import World
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.terminal.plan import show_plan
from vllm_cluster.serving.cluster import up

RESTARTED = "! org/model (ready for 1 min, 2 requests running) stops, and is started again"


def test_hosts_with_the_same_to_do_are_one_line() -> None:
    made = make.world((2, 2, 2))
    with lab.inside(made):
        first = lab.run(made, make.inventory(3), lab.do_up)
        changed = lab.run(made, make.inventory(3, environment={"A": "1"}), lab.do_up)
    todo = [[e.text.splitlines() for e in one.events if e.text.startswith("Plan:")] for one in (first, changed)]
    assert todo[0][0][1:] == [
        "  gpu1: prepare image, create container vcluster-lab, record members",
        "  gpu2, gpu3: prepare image, create container vcluster-lab",
    ]
    assert todo[1][0][1:] == ["  gpu1, gpu2, gpu3: remove container vcluster-lab, create container vcluster-lab"]


@pytest.fixture
def world() -> Iterator[World]:
    """Three hosts that serve a model."""
    with lab.cluster(3, lab.do_up, lab.do_serve) as made:
        made.requests = 2
        made.clock.sleep(60)
        yield made


def plan(inventory: Inventory, world: World) -> up.Planned:
    made = lab.run(world, inventory, lab.do_look).value
    assert isinstance(made, up.Planned)
    return made


def notes(outcome: Outcome) -> str:
    assert outcome.error is None, outcome.story()
    return "\n".join(event.text for event in outcome.events if event.kind == "note")


# fault: serving/cluster/up.py: model = [f"! {stops.consequence}"] if stops.consequence else [] → model: list[str] = []
@pytest.mark.parametrize("fewer", [False, True])
def test_plan_and_up_name_the_model_that_they_restart(
    world: World, fewer: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = make.inventory(2) if fewer else make.inventory(3, environment={"A": "1"})
    made = plan(wanted, world)
    assert made.plan
    show_plan(made.plan, color="never", stops=made.stops.consequence)
    assert f"\n{RESTARTED}\nPlan: " in capsys.readouterr().out
    said = notes(lab.run(world, wanted, lab.do_up))
    assert RESTARTED in said
    assert "org/model is starting: vcluster status" in said
    assert "vcluster serve" not in said


def test_a_model_that_cannot_follow_is_not_called_started_again(world: World) -> None:
    assert lab.run(world, make.inventory(3), partial(lab.do_serve, tp=6, pp=1)).error is None
    world.clock.sleep(60)
    assert plan(make.inventory(2), world).stops.consequence.endswith(" stops, and is not served again")
    assert "now run vcluster serve MODEL" in notes(lab.run(world, make.inventory(2), lab.do_up))


def test_a_plan_that_stops_nothing_names_no_model(world: World) -> None:
    assert plan(make.inventory(3), world).stops.consequence == ""


# fault: serving/cluster/up.py: (*(one.name for one in rows), *order.names) → order.names[:1]
def test_up_names_every_model_that_starts_again() -> None:
    """It named one of two."""
    with lab.inside(made := make.world((2, 2))):
        lab.succeed(made, make.inventory(2, backend="mp"), lab.do_up)
        for host, model in (("gpu1", "org/a"), ("gpu2", "org/b")):
            lab.succeed(made, make.inventory(2, backend="mp"), partial(lab.do_serve, hosts=(host,), model=model))
        changed = make.inventory(2, backend="mp", environment={"A": "1"})
        assert "org/a and org/b are starting: vcluster status" in notes(lab.run(made, changed, lab.do_up))


def test_without_a_model_up_names_the_next_verb() -> None:
    made = make.world((2, 2))
    with lab.inside(made):
        assert "now run vcluster serve MODEL" in notes(lab.run(made, make.inventory(2), lab.do_up))


# fault: kernel/terminal/plan.py: if one.host == moved.host: → if one.host != moved.host:
def test_a_move_of_the_head_is_a_line_a_host(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """What follows from it is left out, other changes are not; -v has each."""
    moved = make.inventory(3, head="gpu2", environment={"A": "1"}, shm_size="2g")
    made = plan(moved, world)
    show_plan(made.plan, color="never", stops=made.stops.consequence)
    also = ["    environment.A: (unset) -> 1", "    shm_size: 16g -> 2g"]
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "~ gpu2: becomes the head: key, history and what is served move there from gpu1",
        *also,
        "~ gpu2: record on the head: org/model is served by gpu2",
        "~ gpu1: becomes a worker",
        *also,
        "~ gpu3: joins the new head: worker vcluster-lab is recreated",
        *also,
        RESTARTED,
        "Plan: 0 to create, 3 to recreate, 0 to remove (8 operations); -v shows each",
    ]
    show_plan(made.plan, color="never", stops=made.stops.consequence, verbosity=1)
    assert "    role: worker -> head\n" in capsys.readouterr().out
