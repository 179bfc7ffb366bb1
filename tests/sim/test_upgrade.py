"""Another version of vcluster meets a cluster: it leaves it alone, or shows what changes and asks."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.support import landed
from tests.support.figures import record
from tests.support.sim import lab, life, make, oracle
from tests.support.sim.world import World
from vllm_cluster.features.check.action import check_hosts
from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.node_status import parse_status
from vllm_cluster.kernel.plan.plan import CreateNode
from vllm_cluster.kernel.plan.spec import CLUSTER, FORMAT_LABEL, HEAD_ADDRESS, NODE, ROLE, SPEC, VERSION


def serving(world: World, inventory: Inventory) -> None:
    """A cluster that serves."""
    for verb in (lab.do_up, lab.do_serve):
        assert lab.run(world, inventory, verb).error is None


def relabel(world: World, change: Callable[[dict[str, str]], None]) -> None:
    """Change the labels of every node, as another version would have set them."""
    for _, box in world.nodes():
        change(box.labels)


def edit_spec(change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, str]], None]:
    """Change the stored spec."""

    def edit(labels: dict[str, str]) -> None:
        data = json.loads(labels[SPEC])
        change(data)
        labels[SPEC] = json.dumps(data)

    return edit


REFUSING_UP = partial(lab.do_up, confirm=lambda _: False)


@pytest.mark.promise("P43")
@pytest.mark.parametrize("version", ["earlier", "later"])
def test_a_field_of_one_version_alone_changes_nothing(version: str) -> None:
    world, inventory = make.world(), make.inventory(2)

    def change(data: dict[str, Any]) -> None:
        if version == "earlier":
            del data["privileged"], data["unlimited_memlock"]
        else:
            data["pids_limit"] = 4096

    with lab.inside(world):
        serving(world, inventory)
        relabel(world, edit_spec(change))
        relabel(world, lambda labels: labels.update({VERSION: "9.9.9"}))
        ids = [box.id for _, box in world.nodes()]
        oracle.untouched(lab.run(world, inventory, lab.do_up))
        again = lab.run(world, inventory, lab.do_serve)
        assert (again.error, again.script.changing) == (None, [])
    assert ids == [box.id for _, box in world.nodes()]
    record("P43", f"sim: a serving cluster of an {version} version with another field", "0 changing calls", True)


# fault: serving/look_up.py: runs = all(what.startswith(_RENEWED) for what in lacking.values()) → runs = False
@pytest.mark.promise("P43")
def test_a_changed_default_is_shown_from_and_to_and_asked() -> None:
    world, inventory = make.world(), make.inventory(2)
    with lab.inside(world):
        serving(world, inventory)
        relabel(world, edit_spec(lambda data: data.update(shm_size=8 << 30)))
        planned = lab.run(world, inventory, lab.do_plan).value
        changes = [op.changes for op in planned.operations() if isinstance(op, CreateNode)]
        assert [[change.text for change in found] for found in changes] == [["shm_size: 8g -> 16g"]] * 2
        refused = lab.run(world, inventory, REFUSING_UP)
        assert isinstance(refused.error, VclusterError)
        assert refused.script.changing == []
        served = lab.run(world, inventory, lab.do_serve)
        assert isinstance(served.error, VclusterError)
        assert served.error.message.startswith(
            "the cluster runs, but vcluster up must renew it first: gpu1, gpu2: the node must be recreated (shm_size: "
        )
        assert (served.error.hint, served.script.changing) == ("vcluster plan\nvcluster up", [])
        assert lab.run(world, inventory, lab.do_up).error is None
        oracle.converged(world, inventory)
    record("P43", "sim: a default that another version changed", "plan names it from -> to; asked first", True)


@pytest.mark.promise("P43", "P25")
def test_the_landed_versions_cluster_is_recreated_once_and_asked() -> None:
    world, inventory = landed.serving()
    with lab.inside(world):
        before = lab.run(world, inventory, lab.do_plan)
        assert {text.partition(": ")[2] or text for _, text in lab.texts(before.value)} == {
            # That version called its node images vcluster-engine.
            "add ray==2.56.1 to vllm/vllm-openai:v0.33.0 unless it has one that fits",
            "made by an earlier version of vcluster (0.1.0)",
            "members gpu1, gpu2",
        }
        refused = lab.run(world, inventory, REFUSING_UP)
        assert isinstance(refused.error, VclusterError)
        assert not before.script.changing and not refused.script.changing
        assert lab.run(world, inventory, lab.do_up).error is None
        oracle.converged(world, inventory)
        oracle.untouched(lab.run(world, inventory, lab.do_up))
    record("P43", "sim: a serving cluster of the version before", "plan gives the reason; asked; recreated once", True)


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


# fault: kernel/plan/diff.py: if spec and spec.program == program: → if spec:
@pytest.mark.promise("P43")
def test_a_node_program_of_another_version_is_named_by_status_and_check() -> None:
    """What a new version corrected in the node is not there before `up`, and nothing else shows that."""
    world, inventory = make.world(), make.inventory(2)
    with lab.inside(world):
        serving(world, inventory)
        assert [host.problem for host in lab.succeed(world, inventory, lab.do_status).value.hosts] == ["", ""]
        assert "node-outdated" not in codes(world, inventory)
        relabel(world, lambda labels: labels.update({VERSION: "0.0.9"}))
        relabel(world, edit_spec(lambda data: data.update(program="0123abcd")))
        found = lab.succeed(world, inventory, lab.do_status).value
        assert codes(world, inventory)["node-outdated"] == "vcluster up"
    text = "its node program is of another version of vcluster (0.0.9, program 0123abcd)"
    assert {(host.problem, host.fix) for host in found.hosts} == {(text, "vcluster up")}
    assert found.ready
    record("P43", "sim: the nodes run the program of another version", "status and check name it, with up", True)


def codes(world: World, inventory: Inventory) -> dict[str, str]:
    """The codes that `check` finds, each with its fix."""
    report = lab.succeed(world, inventory, lab.verb(check_hosts)).value
    return {finding.code: finding.fix for finding in report.findings}


def test_what_its_node_program_wrote_can_be_read() -> None:
    read = {name: parse_status(raw, name) for name, raw in landed.statuses().items()}
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
