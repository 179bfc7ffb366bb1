"""What a head's status is worth: its node program may have stopped, and its clock may jump."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.figures import record
from tests.support.sim import lab, life, make, oracle
from tests.support.sim.faults import Call, Script
from tests.support.sim.world import World
from vllm_cluster.kernel.apply.barrier import await_gpus
from vllm_cluster.kernel.assess import assess
from vllm_cluster.kernel.errors import HostError, NodesNotJoined
from vllm_cluster.kernel.events import Emit
from vllm_cluster.kernel.hosts.reach import connect_all
from vllm_cluster.kernel.hosts.runtime import Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.shell_line import Pasted
from vllm_cluster.serving.status.render import show_status, status_document
from vllm_cluster.serving.status.status import ClusterStatus

INVENTORY = make.inventory(2)


def seen(world: World) -> ClusterStatus:
    """What `status` finds."""
    found = lab.succeed(world, INVENTORY, lab.do_status)
    assert isinstance(found.value, ClusterStatus)
    return found.value


# fault: kernel/plan/node_status.py: if status.updated < started < now + DATE_SECONDS: → if status.updated < started:
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
        lab.succeed(world, INVENTORY, lab.do_serve)
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


# fault: serving/status/status.py: if self.head.serve is None and self.head.group.state == "unknown": → if False:
# fault: serving/status/status.py: fix = fix or _restart_line(inventory, name) → fix = fix
@pytest.mark.promise("P38")
def test_what_is_served_is_unknown_while_the_heads_node_program_is_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing was served as it wrote last: that may have changed, and it cannot be asked."""
    world = make.world((1, 1))
    with lab.inside(world):
        assert lab.run(world, INVENTORY, lab.do_up).error is None
        assert seen(world).served is False
        head = world.machines["gpu1"].box("vcluster-lab")
        assert head
        head.life["stopped"] = True
        world.clock.sleep(60)
        found = seen(world)
    assert (found.served, found.ready, status_document(found, Pasted)["served"]) == (None, False, None)
    show_status(found, Pasted, color="never")
    out = capsys.readouterr().out
    assert "No model is being served" not in out
    assert "served model: unknown: the node program has not written its status for " in out
    assert "  fix: vcluster check\n  fix: on gpu1: docker restart vcluster-lab\n" in out


# fault: serving/ask_head.py: IDLE_SECONDS = 300.0 → IDLE_SECONDS = 900.0
@pytest.mark.promise("P37")
@pytest.mark.parametrize(
    ("how", "phase", "why"),
    [
        ("a worker's Ray is gone", "waiting", "GPUs 1/2"),
        (
            "the head's node program stops as the request is written",
            "",
            "did not pick up the request within 30 s",
        ),
        ("the head's node program stops while the model loads", "unknown", "has not written its status for"),
    ],
)
def test_serve_always_returns(how: str, phase: str, why: str) -> None:
    world = make.world((1, 1))
    with lab.inside(world):
        assert lab.run(world, INVENTORY, lab.do_up).error is None
        head, worker = (world.machines[name].box("vcluster-lab") for name in ("gpu1", "gpu2"))
        assert head
        assert worker
        script = Script()
        if "worker" in how:
            worker.life.update(state="down", due=float("inf"))
            world.clock.sleep(120)

        def strike(call: Call) -> None:
            loads = (head.life.get("serve") or {}).get("phase") == "loading"
            if "PUT" in call.what if "request" in how else loads and "loads" in how:
                head.life["stopped"] = True

        script.hook = strike
        ended = lab.run(world, INVENTORY, lab.do_serve, script)
        assert isinstance(ended.error, HostError), ended.story()
        assert why in ended.error.message
        if phase:
            assert f"org/model does not start for 300 s: {phase}: " in ended.error.message
            assert "the request is kept" in ended.error.message
            assert ended.error.hint == "vcluster status\nvcluster stop org/model"
        assert ended.seconds < 400
    record("P37", f"sim: serve, {how}", f"returns after {ended.seconds:.0f} s: {ended.error.message[:90]}", True)


def _await_gpus(inventory: Inventory, emit: Emit, runtime: Runtime) -> None:
    """The wait of `up` for the GPUs of all hosts."""
    with connect_all(inventory, emit, runtime=runtime) as fleet:
        await_gpus(fleet, assess(inventory, fleet, emit, read=False).plan, emit)


# fault: kernel/apply/barrier.py: and seconds > CONNECT_SECONDS: → and seconds > 1e9:
@pytest.mark.promise("P37")
def test_up_ends_by_what_a_worker_knows_of_its_way_to_the_head() -> None:
    world = make.world((1, 1))
    with lab.inside(world):
        assert lab.run(world, INVENTORY, lab.do_up).error is None
        head, worker = (world.machines[name].box("vcluster-lab") for name in ("gpu1", "gpu2"))
        assert head
        assert worker
        head.life["nodes"] = {name: row for name, row in head.life["nodes"].items() if row["where"][0] == "gpu1"}
        worker.life["error"] = "10.0.0.1:6379: timed out"
        world.clock.sleep(1)
        again = lab.run(world, INVENTORY, _await_gpus)
        assert isinstance(again.error, HostError), again.story()
        assert "no connection to the head for 30 s (10.0.0.1:6379: timed out)" in again.error.message
        assert any("waiting for gpu2 (10.0.0.1:6379: timed out)" in event.text for event in again.events)
    record(
        "P37", "sim: up, a worker's way to the head is cut", f"ends after {again.seconds:.0f} s: {again.error}", True
    )


# What Ray takes to notice, at most.
NOTICED = 33.0


# fault: kernel/apply/barrier.py: if name in nodes and not _may_be_up(nodes[name])} → if name not in nodes}
@pytest.mark.promise("P1")
@pytest.mark.parametrize("what", ["made again", "started", "still starting"])
def test_up_waits_for_the_node_itself(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "GHOST", NOTICED)
    world = make.world((2, 2))
    with lab.inside(world):
        lab.succeed(world, INVENTORY, lab.do_up)
        machine = world.machines["gpu2"]
        node = machine.box("vcluster-lab")
        assert node
        if what == "made again":
            machine.boxes.clear()
        elif what == "started":
            world.stop(machine, node, gently=False, code=137)
        else:  # where the run before was broken off, this one has nothing to do but to wait
            node.life.update(state="starting", due=world.clock.now + 20)
            world.clock.sleep(1)  # it reports that
        lab.succeed(world, INVENTORY, lab.do_up)
        world.clock.sleep(1)
        status: Any = lab.run(world, INVENTORY, lab.do_status).value
        assert status.up, status.hosts
        oracle.converged(world, INVENTORY)


# fault: kernel/apply/barrier.py: if node.alive and node.id in former} → if node.alive and node.id in ()}
def test_a_former_node_is_not_counted_by_a_picture_from_before() -> None:
    """The head lists its members every so often: its last list may have the node that has ended alone."""
    world = make.world((2, 2))
    with lab.inside(world):
        lab.succeed(world, INVENTORY, lab.do_up)
        head = world.machines["gpu1"].box("vcluster-lab")
        assert head
        (former,) = (name for name, row in head.life["nodes"].items() if row["address"] == "10.0.0.2")

        def wait(inventory: Inventory, emit: Emit, runtime: Runtime) -> None:
            with connect_all(inventory, emit, runtime=runtime) as fleet:
                plan = assess(inventory, fleet, emit, read=False).plan
                await_gpus(fleet, plan, emit, {former})

        waited = lab.run(world, INVENTORY, wait)
    assert isinstance(waited.error, NodesNotJoined), waited.story()
    assert "GPUs 2/4: waiting for gpu2" in waited.error.message
