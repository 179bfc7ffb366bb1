"""Two replicas of a model: `serve` ends once both are ready, and where one fails it is named until it is back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.support.json_schemas import validate
from tests.support.sim import lab, life, make
from tests.support.sim.faults import Call, Fault, Script
from tests.support.sim.lab import Outcome
from tests.support.sim.world import Box, World
from vllm_cluster.features.logs.action import show_logs
from vllm_cluster.features.logs.lines import Line, LogRequest
from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.plan.history import Entry
from vllm_cluster.kernel.shell_line import Pasted
from vllm_cluster.serving.cluster.up import Planned
from vllm_cluster.serving.status import history
from vllm_cluster.serving.status.render import serving_lines, status_document
from vllm_cluster.serving.status.render_watch import line, picture
from vllm_cluster.serving.status.status import ClusterStatus
from vllm_cluster.serving.status.watch import View

INVENTORY = make.inventory(2, backend="mp")
WHY = "torch.OutOfMemoryError: CUDA out of memory"


@pytest.fixture
def served() -> Iterator[tuple[World, Outcome]]:
    """A replica on each of two hosts, and how they were asked for."""
    world = make.world((2, 2))
    with lab.inside(world):
        lab.succeed(world, INVENTORY, lab.do_up)
        yield world, lab.succeed(world, INVENTORY, partial(lab.do_serve, replicas=2))


def box(world: World, host: str) -> Box:
    """The node of a host."""
    found = world.machines[host].box("vcluster-lab")
    assert found
    return found


def seen(world: World) -> ClusterStatus:
    """What `status` finds."""
    found = lab.succeed(world, INVENTORY, lab.do_status).value
    assert isinstance(found, ClusterStatus)
    return found


def entries(world: World) -> list[Entry]:
    """`vcluster status --history`."""
    return list(lab.succeed(world, INVENTORY, lambda i, _, runtime: history.history(i, runtime=runtime)).value)


def lines_of(world: World, replica: int) -> list[Line]:
    """`vcluster logs --only replica=N`."""
    found: list[Line] = []
    asked = LogRequest(("gpu1", "gpu2"), replica=replica)

    def verb(inventory: Any, emit: Any, runtime: Any) -> None:
        show_logs(inventory, asked, emit, found.extend, runtime=runtime)

    lab.run(world, INVENTORY, verb)
    return found


# fault: serving/ask_head.py: if not self._left: → if len(self._left) < 2:
def test_serve_ends_once_the_last_one_is_ready(served: tuple[World, Outcome]) -> None:
    world, outcome = served
    texts = [event.text for event in outcome.events if event.kind == "progress"]
    first = next(at for at, text in enumerate(texts) if text.startswith("replica 0: ready"))
    assert any(text.startswith("replica 1: ") and not text.startswith("replica 1: ready") for text in texts[first:])
    assert texts[-1].startswith("replica 1: ready")
    found = seen(world)
    assert found.ready
    assert found.head
    assert [(one.index, one.phase, one.ranks) for one in found.head.replicas] == [
        *((0, "ready", {"10.0.0.1": 2}), (1, "ready", {"10.0.0.2": 2})),
    ]


def test_the_history_has_ready_once_the_last_one_is(served: tuple[World, Outcome]) -> None:
    world, _ = served
    assert [entry.result for entry in entries(world) if entry.verb == "serve"] == ["ready"]
    files = world.machines["gpu1"].volumes["vcluster-lab-state"].files
    files["results.jsonl"] = b"".join(row for row in files["results.jsonl"].splitlines(True) if b'"replica": 0' in row)
    assert [entry.result for entry in entries(world) if entry.verb == "serve"] == [None]


# fault: serving/status/status.py: serves = (self.head.serve, *self.head.replicas) if self.head else () → serves = (self.head.serve,) if self.head else ()
def test_one_that_fails_is_named_until_it_is_back(served: tuple[World, Outcome]) -> None:
    world, _ = served
    for host, index, text in (("gpu1", 0, "well"), ("gpu2", 1, WHY)):
        box(world, host).log += f"[vllm_{index}] (EngineCore pid={40 + index}) {text}\n"
    life.fail(world, world.machines["gpu1"], box(world, "gpu1"), 1, WHY)
    world.clock.sleep(0.1)
    found = seen(world)
    assert (found.up, found.ready) == (True, False)
    shown = "\n".join(serving_lines(found))
    assert "org/model: degraded: 1 of 2 replicas at http://127.0.0.1:8000/v1 on gpu1" in shown
    assert "replica 0 (2 of gpu1): ready" in shown
    assert "replica 1 (2 of gpu2): backoff" in shown
    assert WHY in shown
    validate(["status"], json.dumps(status_document(found, Pasted)))
    view = View(world.clock.now, found)
    assert "org/model: degraded: 1 of 2 replicas" in line(view)
    assert "replica 1 (2 of gpu2): backoff" in "\n".join(text for text, _ in picture(view, 80, 24, Pasted))
    assert [(one.host, one.replica, one.text) for one in lines_of(world, 1)] == [
        ("gpu2", 1, f"(EngineCore pid=41) {WHY}"),
    ]
    world.clock.sleep(5)
    found = seen(world)
    assert found.ready
    assert "org/model: ready: 2 of 2 replicas" in "\n".join(serving_lines(found))
    assert found.head
    assert [(one.index, one.attempt) for one in found.head.replicas] == [(0, 1), (1, 2)]


# fault: serving/status/status.py: runtime.clock.monotonic() - looked[head] > NOTICED_SECONDS: → False:
# fault: serving/status/status.py: runtime.clock.monotonic() - looked[head] > NOTICED_SECONDS: → True:
@pytest.mark.parametrize(("answers", "looks"), [("nothing", 2), ("refused", 1)])
def test_what_is_shown_beside_a_host_that_was_waited_for_is_of_the_same_moment(
    served: tuple[World, Outcome], answers: str, looks: int
) -> None:
    """The head had its node on the roll when it was looked at, and not any more when SSH had been waited for."""
    world, gone = served[0], served[0].machines["gpu2"]

    def pause(call: Call) -> Fault | None:
        if (call.host, call.what) != ("gpu2", "connect"):
            return None
        gone.reachable, gone.off_roll = False, True
        return Fault.REFUSED if answers == "refused" else None

    script = Script(by_words=pause)
    found = lab.succeed(world, INVENTORY, lab.do_status, script).value
    assert isinstance(found, ClusterStatus)
    assert sum(call.host == "gpu1" and call.what == "facts" for call in script.calls) == looks
    (_, row) = found.hosts
    assert (row.state, "its node has gone" in row.problem) == ("unreachable", looks == 2)


# fault: serving/ask_head.py: back.replicas <= self._asked.deployment.replicas → True
def test_fewer_replicas_than_before_are_named_after_a_failure(served: tuple[World, Outcome]) -> None:
    world, _ = served
    error = lab.run(world, INVENTORY, partial(lab.do_serve, model="no/such", name="org/model")).error
    assert isinstance(error, HostError)
    assert "org/model is served again" in error.message
    assert error.message.endswith(", with fewer replicas than before")
    assert (error.hint or "").splitlines()[0] == "vcluster serve org/model --replicas 2"


# fault: serving/consent.py: left) == len(served.replicas) or any(left) else 0 → left) == len(served.replicas) else 0
# fault: serving/stops.py: (self.fewer, idle) → (idle,)
# fault: serving/stops.py: (model, unknown, *self._known, self.fewer, → (model, unknown, *self._known,
def test_the_plan_of_a_host_that_leaves_has_the_model_that_continues(served: tuple[World, Outcome]) -> None:
    """No person is asked to stop what is not stopped."""
    world, fewer = served[0], make.inventory(1, backend="mp")
    planned = lab.run(world, fewer, lab.do_look).value
    assert isinstance(planned, Planned)
    assert planned.stops.consequence == "org/model continues with 1 of 2 replicas"
    person = lab.Person(False)
    lab.run(world, fewer, partial(lab.do_up, confirm=person))
    assert person.asked == [
        "Stop the running node on gpu2 of lab (org/model continues with 1 of 2 replicas), remove what "
        "lab has on gpu2, which has left the inventory?"
    ]
