"""`serve --hosts`: what the head is asked for, what is refused, and what becomes of it when hosts leave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from tests.support.sim import lab, make
from tests.support.sim.lab import Outcome
from tests.support.sim.world import World
from vllm_cluster.kernel.errors import UsageError, VclusterError
from vllm_cluster.serving.status import history
from vllm_cluster.wire.order import read_order

THREE = make.inventory(3)


@pytest.fixture
def world() -> Iterator[World]:
    """A cluster of three hosts that serves nothing."""
    with lab.cluster(3, lab.do_up) as made:
        yield made


def ask(world: World, hosts: Sequence[str], tp: int | None = None, pp: int | None = None) -> Outcome:
    """`vcluster serve --yes org/model --hosts …`."""
    return lab.run(world, THREE, partial(lab.do_serve, tp=tp, pp=pp, hosts=hosts))


def wanted(world: World) -> Any:
    """What the head is asked to serve."""
    return read_order(world.machines["gpu1"].volumes["vcluster-lab-state"].files["wanted.json"]).wanted


def notes(outcome: Outcome) -> list[str]:
    """What was noted about the layout."""
    return [event.text for event in outcome.events if event.kind == "note"]


def test_the_chosen_hosts_get_the_ranks_and_the_others_are_listed(world: World) -> None:
    outcome = ask(world, ["gpu3", "gpu2"])
    assert outcome.error is None, outcome.story()
    assert (wanted(world).deployment.hosts, wanted(world).replica.ranks) == (
        ("gpu2", "gpu3"),
        {"10.0.0.2": 2, "10.0.0.3": 2},
    )
    assert "this layout leaves 2 of the 6 GPUs idle: 2 of gpu1" in notes(outcome)
    again = ask(world, ["gpu2", "gpu3"])
    assert (again.error, again.script.changing) == (None, [])


def test_fewer_ranks_than_gpus_go_to_the_first_hosts(world: World) -> None:
    outcome = ask(world, [], 2, 2)
    assert (wanted(world).replica.ranks, wanted(world).deployment.hosts) == ({"10.0.0.1": 2, "10.0.0.2": 2}, ())
    assert "this layout leaves 2 of the 6 GPUs idle: 2 of gpu3" in notes(outcome)


def test_all_hosts_by_name_are_all_hosts(world: World) -> None:
    assert ask(world, []).error is None
    assert not wanted(world).deployment.hosts
    again = ask(world, ["gpu1", "gpu2", "gpu3"])
    assert (again.error, again.script.changing) == (None, [])


@pytest.mark.parametrize(
    ("hosts", "tp", "pp", "text"),
    [
        (["gpu1", "gpu9"], None, None, '--hosts: the inventory has no host "gpu9"'),
        ([""], None, None, '--hosts: the inventory has no host ""'),
        (["gpu2"], 2, 2, "TP=2 x PP=2 needs 4 GPUs; gpu2 has 2"),
        (["gpu2", "gpu3"], 3, None, "--tp 3 does not divide the 4 GPUs of gpu2, gpu3"),
    ],
)
def test_hosts_that_cannot_serve_it_are_refused(
    world: World, hosts: list[str], tp: int | None, pp: int | None, text: str
) -> None:
    outcome = ask(world, hosts, tp, pp)
    assert isinstance(outcome.error, UsageError), outcome.story()
    assert text in outcome.error.message
    assert outcome.script.changing == []


def test_a_rollback_prints_the_port_of_the_request_and_not_a_later_one(world: World) -> None:
    assert ask(world, ["gpu2"]).error is None
    assert ask(world, ["gpu3"], 1, 1).error is None
    moved = THREE.model_copy(update={"ports": THREE.ports.model_copy(update={"api": 8100})})

    outcome = lab.succeed(world, moved, lab.do_rollback)
    assert (outcome.value.port, wanted(world).replica.port) == (8000, 8000)


def test_history_and_rollback_name_the_hosts(world: World) -> None:
    assert ask(world, ["gpu2"]).error is None
    assert ask(world, ["gpu3"], 1, 1).error is None

    lab.succeed(world, THREE, lab.do_rollback)
    assert wanted(world).replica.ranks == {"10.0.0.2": 2}
    entries = lab.run(world, THREE, lambda inventory, _, runtime: history.history(inventory, runtime=runtime)).value
    assert [entry.operations[0] for entry in entries if entry.verb in ("serve", "rollback")] == [
        "serve org/model --hosts gpu2 (TP=2 × PP=1)",
        "serve org/model --tp 1 --pp 1 --hosts gpu3 (TP=1 × PP=1)",
        "rollback to org/model --hosts gpu2 (TP=2 × PP=1)",
    ]


def test_a_host_that_leaves_takes_the_model_along_only_where_it_was_chosen(world: World) -> None:
    assert ask(world, ["gpu1", "gpu2"]).error is None
    lab.succeed(world, make.inventory(2), lab.do_up)
    assert wanted(world).replica.ranks == {"10.0.0.1": 2, "10.0.0.2": 2}
    lab.succeed(world, make.inventory(1), lab.do_up)
    assert wanted(world) is None


def test_a_host_without_ranks_leaves_and_no_model_is_listed_to_stop(world: World) -> None:
    assert ask(world, ["gpu1", "gpu2"]).error is None
    person = lab.Person(False)
    outcome = lab.run(world, make.inventory(2), partial(lab.do_up, confirm=person))
    assert person.asked == [
        "Stop the running node on gpu3 of lab (org/model has no rank there), remove what lab "
        "has on gpu3, which has left the inventory?"
    ]
    assert not [text for text in notes(outcome) if "org/model" in text]


# fault: kernel/hosts/reach.py: if inventory.head_name not in failures and → if
@pytest.mark.parametrize(("off", "named"), [("gpu2", True), ("gpu1", False)])
def test_where_a_host_is_off_the_way_without_it_is_named(world: World, off: str, named: bool) -> None:
    world.machines[off].reachable = False
    outcome = ask(world, ["gpu3"])
    assert isinstance(outcome.error, VclusterError)
    way = f"without it: take {off} out of the inventory; vcluster plan shows what stops then; vcluster up"
    assert ((outcome.error.hint or "").splitlines()[-1:] == [way]) is named
    assert outcome.error.exit_code == 4
