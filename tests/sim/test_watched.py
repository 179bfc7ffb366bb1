"""What a head's status is worth: its node program may have stopped, and its clock may jump."""

from __future__ import annotations

import pytest

from tests.support.figures import record
from tests.support.sim import lab, make
from tests.support.sim.world import World
from vllm_cluster.actions.status import ClusterStatus

INVENTORY = make.inventory(2)


def seen(world: World) -> ClusterStatus:
    """What `status` finds."""
    found = lab.run(world, INVENTORY, lab.do_status)
    assert found.error is None, found.story()
    assert isinstance(found.value, ClusterStatus)
    return found.value


@pytest.mark.promise("P38")
def test_a_clock_that_was_two_hours_ahead_at_the_start_and_is_put_back() -> None:
    world = make.world((1, 1))
    world.machines["gpu1"].skew = 7200.0
    with lab.inside(world):
        assert lab.run(world, INVENTORY, lab.do_up).error is None
        world.machines["gpu1"].skew = 0.0
        world.clock.sleep(6)
        assert seen(world).up
        again = lab.run(world, INVENTORY, lab.do_up)
        assert (again.error, again.script.changing) == (None, [])
        served = lab.run(world, INVENTORY, lab.do_serve)
        assert served.error is None, served.story()
        status = seen(world)
        assert status.head
        assert status.head.serve
        assert status.head.serve.phase == "ready"
    record("P38", "sim: the head's clock is put back by 2 h after its start", "up, serve and status as ever", True)


@pytest.mark.promise("P38")
def test_a_node_program_that_stopped_is_not_believed() -> None:
    world = make.world((1, 1))
    with lab.inside(world):
        assert lab.run(world, INVENTORY, lab.do_up).error is None
        assert lab.run(world, INVENTORY, lab.do_serve).error is None
        head = world.machines["gpu1"].box("vcluster-lab")
        assert head
        head.life["stopped"] = True
        stopped, phase = world.clock.now, "ready"
        while phase == "ready":
            world.clock.sleep(1)
            status = seen(world)
            assert status.head
            assert status.head.serve
            phase = status.head.serve.phase
        took = world.clock.now - stopped
        assert (phase, status.up, took < 60) == ("unknown", False, True)
        assert "the node program has not written its status for" in status.hosts[0].problem
    record("P38", "sim: the head's node program is stopped", f"ready for {took:.0f} s more, then unknown", True)
