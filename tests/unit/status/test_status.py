"""What `status` makes of what was found on each host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.sim import lab, make
from tests.support.views import HEAD, WORKER, serving, view
from vllm_cluster.serving.status.render import group_problems, serving_lines
from vllm_cluster.serving.status.status import MISSING, RUNNING, STOPPED, UNREACHABLE, HostState, assemble
from vllm_cluster.wire.roll import Presence, Roll, RollNode

GPUS = 8


# fault: serving/status/status.py: 0 if row.state in (MISSING, STOPPED) else →
@pytest.mark.parametrize(
    ("state", "counted"), [(RUNNING, GPUS), (STOPPED, 0), (MISSING, 0), (UNREACHABLE, GPUS)], ids=str
)
def test_a_node_that_has_just_ended_has_no_gpus(state: str, counted: int) -> None:
    """Ray on the head counts them until it misses the node; one that was not seen may still run."""
    head = HostState(RUNNING, role="head", gpus=GPUS, status=view(HEAD, WORKER).status.head)
    found = assemble(make.inventory(2), {"gpu1": head, "gpu2": HostState(state, gpus=GPUS)})
    assert [host.joined_gpus for host in found.hosts] == [GPUS, counted]
    assert found.up is (state == RUNNING)


# fault: serving/status/status.py: and not away → and True
def test_a_node_that_sends_no_beat_is_named_beside_what_ray_counts() -> None:
    """Ray counts a host that is cut off for half a minute more."""
    whole = view(HEAD, WORKER).status.head
    assert whole
    inventory = make.inventory(2)
    addresses = [host.address for host in inventory.hosts.values()]
    states: list[Presence] = ["here", "silent"]
    nodes = [RollNode("gpu", at, GPUS, state, 1.0) for at, state in zip(addresses, states, strict=True)]
    head = HostState(RUNNING, role="head", gpus=GPUS, status=replace(whole, roll=Roll(tuple(nodes))))
    found = assemble(inventory, {"gpu1": head, "gpu2": HostState(RUNNING, gpus=GPUS)})
    assert not found.up
    assert [host.problem for host in found.hosts] == ["", "its node sends no beat; Ray counts 8 GPUs"]
    # Where there is no Ray, it counts nothing.
    assert head.status
    without = replace(head.status, group=replace(head.status.group, by="mp", nodes=head.status.group.nodes[:1]))
    found = assemble(
        inventory, {"gpu1": replace(head, status=without), "gpu2": replace(head, role="worker", status=without)}
    )
    assert found.hosts[1].problem == "the head reports 0 of 8 GPUs; its node sends no beat"


# fault: serving/status/render.py: if node.state != "here"} → if node.state == "here"}
def test_what_was_ready_is_not_confirmed_since_a_host_of_it_is_silent() -> None:
    one, two = HEAD.address, WORKER.address
    seen = view(HEAD, WORKER, serve=replace(serving(), ranks={one: GPUS, two: GPUS})).status
    assert seen.head and seen.now
    nodes = (RollNode("gpu1", one, GPUS, "here", 1.0), RollNode("gpu2", two, GPUS, "silent", seen.now - 26))
    cut = replace(seen, head=replace(seen.head, roll=Roll(nodes)))
    assert [line for line in serving_lines(cut) if line not in [*serving_lines(seen)]] == [
        "org/model: not confirmed for 26 s: nothing came from gpu2"
    ]


# fault: serving/status/status.py: spec.intent != intent(inventory.hosts[name]): → spec.intent != ():
@pytest.mark.parametrize(("left", "declared"), [(1, False), (0, False), (1, True)])
def test_a_lost_gpu_is_named_with_a_fix_that_ends_it(left: int, declared: bool) -> None:
    """`up` keeps a node where less is found than when it was made: it is not the fix."""
    world, inventory = make.world((2, 2)), make.inventory(2)
    with lab.inside(world):
        lab.succeed(world, inventory, lab.do_up)
        world.machines["gpu2"].gpus = left
        if declared:
            inventory = make.inventory(2, {"gpu2": {"gpus": left}})
        found = lab.succeed(world, inventory, lab.do_status).value
        assert not found.up
        (row,) = [host for host in found.hosts if host.problem]
        if declared:
            assert (row.problem, row.fix) == ("Ray reports 2 of 1 GPUs", "vcluster up")
        elif left:
            assert row.problem == "1 GPU is found, 2 when its node was made"
            assert row.fix == "repair the host, or set hosts.gpu2.gpus: 1\nvcluster up"
            inventory = make.inventory(2, {"gpu2": {"gpus": left}})
        else:
            assert (row.problem, row.fix) == ("0 GPUs are found, 2 when its node was made", "repair the host")
            return
        lab.succeed(world, inventory, lab.do_up)
        assert lab.succeed(world, inventory, lab.do_status).value.up


# fault: serving/status/render.py: last = fix not in fixes[number : number + 1] → last = True
def test_the_same_fix_of_several_problems_is_shown_below_the_last() -> None:
    rows = [replace(WORKER, host=f"gpu{n}", problem=f"cannot resolve host name n{n}", fix="set it") for n in (2, 3)]
    problems = [*group_problems(view(HEAD, *rows, replace(WORKER, problem="stopped", fix="vcluster up")).status, 0)]
    assert problems == [
        ("gpu2: cannot resolve host name n2", ""),
        ("gpu3: cannot resolve host name n3", "set it"),
        ("gpu2: stopped", "vcluster up"),
    ]
