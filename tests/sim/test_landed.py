"""The cluster of version 0.1.0 in the simulated world: what every later version must be able to read and remove."""

from __future__ import annotations

import pytest

from tests.support import landed
from tests.support.sim import lab, life, oracle
from vllm_cluster.core.node_status import parse_status
from vllm_cluster.core.spec import CLUSTER, FORMAT_LABEL, HEAD_ADDRESS, NODE, ROLE, VERSION


def test_it_is_there_and_serves() -> None:
    world, inventory = landed.serving()
    for name, role in (("gpu1", "head"), ("gpu2", "worker")):
        labels = landed.labels(name)
        assert (labels[VERSION], labels[FORMAT_LABEL]) == ("0.1.0", "1")
        assert (labels[CLUSTER], labels[NODE], labels[ROLE]) == ("lab", name, role)
        assert labels[HEAD_ADDRESS] == "10.0.0.1"
        assert len(labels["io.vcluster.spec-hash"]) == 16
    with lab.inside(world):
        seen = lab.run(world, inventory, lab.do_status)
    assert seen.error is None, seen.story()
    assert (seen.value.up, seen.value.head.serve.phase) == (True, "ready")


@pytest.mark.promise("P43")
def test_it_can_be_stopped_and_taken_down() -> None:
    world, inventory = landed.serving()
    foreign = world.foreign()
    with lab.inside(world):
        stopped = lab.run(world, inventory, lab.do_stop)
        assert (stopped.error, stopped.value) == (None, True), stopped.story()
        assert {box.life["state"] for _, box in world.nodes()} == {"up"}
        lab.succeed(world, inventory, lab.do_down)
    oracle.nothing_left(world)
    assert world.foreign() == foreign


@pytest.mark.promise("P43")
def test_its_plan_changes_nothing() -> None:
    world, inventory = landed.serving()
    with lab.inside(world):
        planned = lab.run(world, inventory, lab.do_plan)
    assert planned.error is None, planned.story()
    assert not planned.script.changing
    assert {box.labels[VERSION] for _, box in world.nodes()} == {"0.1.0"}
    assert world.machines["gpu1"].read(next(box for _, box in world.nodes()), f"{life.STATE}/wanted.json")


def test_what_its_node_program_wrote_can_be_read() -> None:
    read = {name: parse_status(raw) for name, raw in landed.statuses().items()}
    assert {name: status.role for name, status in read.items()} == {
        "head-ended": "head",
        "head-idle": "head",
        "head-ready": "head",
        "worker": "worker",
    }
    ready = read["head-ready"].serve
    assert ready
    assert (ready.phase, ready.name, read["head-idle"].serve) == ("ready", "model", None)
    assert sum(node.gpus for node in read["head-ready"].group.nodes if node.alive) == 4
