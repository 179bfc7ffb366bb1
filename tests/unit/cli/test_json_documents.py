"""What programs read: real output of every verb with --json, held against the checked-in schemas."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import json_schemas, landed, world
from tests.support.json_schemas import DOCUMENTS, validate
from tests.support.logs import HEALTHY, PRODUCED, explained
from tests.support.paths import FIXTURES
from tests.support.sim import lab, make
from tests.support.sim.faults import Call, Fault, Script
from tests.support.sim.lab import Outcome
from tests.support.sim.world import World
from tools.json_schemas import schemas
from vllm_cluster.features.check import measure as allreduce
from vllm_cluster.features.check.action import CheckReport
from vllm_cluster.features.check.allreduce import AllReduceTime
from vllm_cluster.features.check.render import report_document
from vllm_cluster.features.check.render_facts import facts_document
from vllm_cluster.kernel.backends.nccl import NcclTransport
from vllm_cluster.kernel.checks.registry import check_all, unseen
from vllm_cluster.kernel.errors import FleetError, Unreachable, VclusterError
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.facts.parse import facts
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.shell_line import Pasted
from vllm_cluster.kernel.terminal import errors, events
from vllm_cluster.kernel.terminal.plan import plan_document
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.serving.ask_head import Endpoint
from vllm_cluster.serving.endpoint import endpoint as action
from vllm_cluster.serving.endpoint import rotate
from vllm_cluster.serving.endpoint import verb as endpoint
from vllm_cluster.serving.endpoint.render import show_endpoint
from vllm_cluster.serving.explain.render import explain_document
from vllm_cluster.serving.status.render import status_document

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("rotated", [False, True])
def test_the_key_is_a_document(rotated: bool, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inventory = make.inventory(1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(Session, "load", lambda _: inventory)
    monkeypatch.setattr(action, "key", lambda *_: "abc")

    def rotated_key(_inventory: Inventory, emit: Emit, **_: object) -> tuple[str, str]:
        emit(Event("note", "x"))
        return "abc", "old"

    monkeypatch.setattr(rotate, "rotate", rotated_key)
    endpoint.endpoint(key=not rotated, rotate=0.0 if rotated else None, as_json=True)
    validate(["endpoint", "--rotate" if rotated else "--key"], output := capsys.readouterr().out)
    assert json.loads(output) == {"v": 1, "key": "abc"}


@pytest.fixture
def serving() -> Iterator[tuple[World, Inventory]]:
    """The cluster of version 0.1.0, which has everything: other labels, nodes, a model."""
    made, inventory = landed.serving()
    with lab.inside(made):
        yield made, inventory


def written(outcome: Outcome, capsys: Capture) -> str:
    """The events and the error of a run, as --json writes them."""
    for event in outcome.events:
        events.json_lines(event)
    if isinstance(outcome.error, VclusterError):
        errors.write_error(outcome.error, Pasted, as_json=True, color="never")
    return capsys.readouterr().out


def kinds(output: str) -> set[str]:
    """The kinds of events in it."""
    return {json.loads(line)["event"] for line in output.splitlines()}


def test_a_whole_life(capsys: Capture) -> None:
    made, inventory = make.world((2, 2), present=False), make.inventory(2)
    seen: set[str] = set()
    with lab.inside(made):
        for verb in (lab.do_up, lab.do_up, lab.do_serve, lab.do_stop, lab.do_stop, lab.do_down):
            outcome = lab.succeed(made, inventory, verb)
            validate(["events"], output := written(outcome, capsys))
            seen |= kinds(output)
    assert seen >= {"phase", "plan", "start", "done", "note", "progress", "result"}


# fault: kernel/terminal/errors.py: time": round(time.time(), 3), " →
@pytest.mark.parametrize("verb", [lab.do_up, lab.do_serve, lab.do_stop, lab.do_down])
@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.LOST])
def test_what_goes_wrong(serving: tuple[World, Inventory], verb: lab.Verb, fault: Fault, capsys: Capture) -> None:
    made, _ = serving
    inventory = make.inventory(2, environment={"A": "1"}) if verb is lab.do_up else make.inventory(2)
    made.machines["gpu2"].skew = 3600

    def decide(call: Call) -> Fault | None:
        return fault if call.host == ("gpu1" if verb is lab.do_stop else "gpu2") and call.what != "connect" else None

    outcome = lab.run(made, inventory, verb, Script(by_words=decide))
    assert outcome.error is not None
    validate(["events"], output := written(outcome, capsys))
    assert "error" in kinds(output)


def test_the_error_of_several_hosts(capsys: Capture) -> None:
    broken = FleetError({"a": Unreachable("a", "nothing listens", hint="start sshd"), "b": VclusterError("b: no")})
    errors.write_error(broken.with_hosts(["a", "b", "c"]), Pasted, as_json=True, color="never")
    validate(["up"], capsys.readouterr().out)


@pytest.mark.parametrize("case", ["nothing there", "up to date", "changed", "stopped"])
def test_plans(case: str, serving: tuple[World, Inventory]) -> None:
    made, inventory = serving
    if case in ("up to date", "stopped"):
        assert lab.run(made, inventory, lab.do_up).error is None
    if case == "stopped":
        for machine in made.machines.values():
            made.stop(machine, next(iter(machine.boxes.values())))
    elif case == "changed":
        inventory = make.inventory(2, environment={"A": "1"}, shm_size=1 << 30)
    elif case == "nothing there":
        made = make.world((2, 2))
    with lab.inside(made):
        planned = lab.run(made, inventory, lab.do_plan)
    assert planned.error is None, planned.story()
    assert planned.value.empty == (case == "up to date")
    validate(["plan"], json.dumps({"v": 1, **plan_document(planned.value), "stops": None}))


# fault: serving/status/render.py: "unreachable": list(status.unreachable), → "lost": list(status.unreachable),
@pytest.mark.parametrize("case", ["serving", "failed", "half gone", "nothing there"])
def test_states(case: str, serving: tuple[World, Inventory]) -> None:
    made, inventory = serving
    if case == "failed":
        lab.run(made, inventory, partial(lab.do_serve, model="no/such"))
    elif case == "half gone":
        made.machines["gpu2"].reachable = False
    elif case == "nothing there":
        made = make.world((2, 2))
    with lab.inside(made):
        seen = lab.run(made, inventory, lab.do_status)
    validate(["status"], json.dumps(status_document(seen.value, Pasted), default=str))


@pytest.mark.parametrize("name", ["h200-x2-host.txt", "sandbox-host.txt"])
def test_facts_of_real_hosts(name: str) -> None:
    text = (FIXTURES / "facts" / name).read_text()
    found = {"gpu1": facts("gpu1", text, deep=True), "gpu2": world.host(2)}
    validate(["check", "--facts"], json.dumps(facts_document(found)))
    inventory = world.inventory()
    report = CheckReport(check_all(inventory, found), unseen(inventory, found), tuple(found), 1.5)
    assert report.findings
    validate(["check"], json.dumps(report_document(report, Pasted)))


def test_what_all_ranks_did_together() -> None:
    way = NcclTransport(("NET/IB/GDRDMA",), ("mlx5_0:1",))
    tried = allreduce.AllReduceReport(
        (), (AllReduceTime(1 << 10, 4e-5, 0.03),), way, 16, torch="2.14.0", expected_gb_per_s=400.0
    )
    validate(["check"], json.dumps(report_document(CheckReport((), (), ("gpu1",), 9.0, tried), Pasted)))


@pytest.mark.parametrize("path", [*PRODUCED, *HEALTHY], ids=lambda path: path.stem)
def test_documents_of_logs(path: Any) -> None:
    lost = {"gpu2": Unreachable("gpu2", "no answer")}
    validate(["explain"], json.dumps(explain_document(explained(path.read_bytes()), lost, Pasted)))


def test_the_endpoint(capsys: Capture) -> None:
    show_endpoint(Endpoint("org/model", "127.0.0.1", "gpu1", 8000), None, Pasted, as_json=True)
    validate(["serve"], capsys.readouterr().out)


def without(key: str) -> Callable[[dict[str, Any]], object]:
    return lambda row: row.pop(key)


@pytest.mark.parametrize(
    "spoil", [without("up"), lambda row: row.update(more=1), lambda row: row["hosts"][0].update(gpus="2")]
)
def test_a_schema_refuses_what_it_does_not_know(
    serving: tuple[World, Inventory], spoil: Callable[[dict[str, Any]], object]
) -> None:
    document = status_document(lab.run(*serving, lab.do_status).value, Pasted)
    json_schemas.validate(["status"], json.dumps(document))
    spoil(document)
    with pytest.raises(AssertionError, match="status --json"):
        json_schemas.validate(["status"], json.dumps(document))


def test_each_schema_is_that_of_a_command() -> None:
    """And is listed beside it in docs/reference/json."""
    assert set(schemas()) == {*DOCUMENTS.values(), "events"}
