"""One host that cannot be reached hides nothing of the others: check shows what is true of those."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.sim import lab, make
from tests.support.sim.world import World
from vllm_cluster.features.check import action as check
from vllm_cluster.kernel.checks.finding import Finding
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts import observe as hosts_observe
from vllm_cluster.kernel.hosts.observe import observe

INVENTORY = make.inventory(3)


@pytest.fixture
def world() -> Iterator[World]:
    """Three hosts, of which a test cuts one."""
    with lab.cluster(3) as made:
        yield made


# fault: features/check/action.py: findings += look_inside(fleet, inventory, facts, emit, leave=known) → pass
# fault: features/check/action.py: [*_lost(failures), *check_all( → [*check_all(
@pytest.mark.parametrize("dead", ["gpu1", "gpu3"])
def test_check_reports_the_hosts_that_answer(world: World, dead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def between(_fleet: Any, _inventory: Any, facts: dict[str, HostFacts], _emit: Any) -> Any:
        seen.append(list(facts))
        return [], []

    # What runs on the hosts beside Docker is not played here.
    monkeypatch.setattr(check, "run_link_test", between)
    monkeypatch.setattr(check, "observe", lambda inventory, link, deep: observe(inventory, link))
    monkeypatch.setattr(check, "look_inside", lambda *_, **__: [Finding("clock-skew", "gpu2", "it is late", "set it")])
    world.machines[dead].reachable = False

    outcome = lab.succeed(world, INVENTORY, lab.verb(check.check_hosts))
    report = outcome.value
    codes = [(one.code, one.host) for one in report.findings if one.error]
    assert codes == [("unreachable", dead), ("clock-skew", "gpu2")]
    others = [name for name in ("gpu1", "gpu2", "gpu3") if name != dead]
    assert (report.unreachable, list(report.hosts), seen) == (True, others, [others])


# fault: features/check/action.py: return list(endpoint(inventory, facts)) → return []
def test_check_finds_the_port_of_the_api_taken_while_nothing_is_served(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes run, and another program has taken the port that only `serve` would miss."""
    monkeypatch.setattr(check, "run_link_test", lambda *_: ([], []))
    monkeypatch.setattr(check, "observe", lambda inventory, link, deep: observe(inventory, link))
    monkeypatch.setattr(check, "look_inside", lambda *_, **__: [])
    assert lab.run(world, INVENTORY, lab.do_up).error is None
    world.machines["gpu1"].listening.add(8000)

    report = lab.run(world, INVENTORY, lab.verb(check.check_hosts)).value
    assert [(one.code, one.host) for one in report.findings] == [("port-in-use", "gpu1")]


# fault: kernel/hosts/observe.py: connection.no_docker = error → pass
def test_check_reports_a_head_whose_docker_cannot_be_used(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asked the head's Docker for its node nevertheless, and ended with an internal error."""
    honest = hosts_observe.run_fact_script

    def without_docker(*given: Any, **named: Any) -> HostFacts:
        facts = honest(*given, **named)
        return replace(facts, docker=replace(facts.docker, problem="no docker")) if facts.host == "gpu1" else facts

    monkeypatch.setattr(check, "run_link_test", lambda *_: ([], []))
    monkeypatch.setattr(check, "observe", lambda inventory, link, deep: observe(inventory, link))
    monkeypatch.setattr(check, "look_inside", lambda *_, **__: [])
    monkeypatch.setattr(hosts_observe, "run_fact_script", without_docker)
    report = lab.succeed(world, INVENTORY, lab.verb(check.check_hosts)).value
    assert [one.host for one in report.findings if one.error] == ["gpu1"]


# fault: features/check/action.py: node is None or node.state != "running" → node is None
# fault: features/check/action.py: if not any(nodes.values()): → if False:
@pytest.mark.parametrize("state", ["exited", "missing", "no cluster"])
def test_check_finds_a_node_that_does_not_run(world: World, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`docker kill` had ended it, and check found no problem."""
    monkeypatch.setattr(check, "run_link_test", lambda *_: ([], []))
    monkeypatch.setattr(check, "observe", lambda inventory, link, deep: observe(inventory, link))
    monkeypatch.setattr(check, "look_inside", lambda *_, **__: [])
    if state != "no cluster":
        lab.succeed(world, INVENTORY, lab.do_up)
        machine = world.machines["gpu2"]
        box = machine.box("vcluster-lab")
        assert box
        world.stop(machine, box, gently=False)
        if state == "missing":
            del machine.boxes[box.id]

    report = lab.succeed(world, INVENTORY, lab.verb(check.check_hosts)).value
    found = [(one.host, one.message, one.fix) for one in report.findings if one.code == "node-stopped"]
    what = [("gpu2", f"its node does not run: it is {state}", "vcluster up")]
    assert found == (what if state != "no cluster" else [])
    assert not report.failed


# fault: features/check/action.py: for text in missing_identities(inventory): → for text in ():
def test_check_warns_of_a_private_key_that_is_not_there(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another key lets in, and the one that the inventory names is a slip."""
    monkeypatch.setattr(check, "run_link_test", lambda *_: ([], []))
    monkeypatch.setattr(check, "observe", lambda inventory, link, deep: observe(inventory, link))
    monkeypatch.setattr(check, "look_inside", lambda *_, **__: [])
    settings = INVENTORY.ssh.model_copy(update={"identity": Path("/nowhere/key")})
    done = lab.succeed(world, INVENTORY.model_copy(update={"ssh": settings}), lab.verb(check.check_hosts))
    warnings = [event.text for event in done.events if event.kind == "warning"]
    assert any(text.endswith(": ssh.identity: /nowhere/key is not there") for text in warnings)
