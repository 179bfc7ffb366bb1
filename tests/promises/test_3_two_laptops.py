"""P11: two `up` at the same time, again and again."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack

import pytest

from tests.e2e.conftest import Sandbox
from tests.promises.attack import attack
from tests.promises.controller import Controller, controller
from tests.promises.hosts import Normal, settle, something_to_do, with_nodes

pytestmark = [pytest.mark.e2e, pytest.mark.promise]

Stand = dict[str, set[str]]
APART = 0.1
TIMES = [pytest.param(3, marks=pytest.mark.short), pytest.param(200, marks=pytest.mark.deep)]


def race(sandbox: Sandbox, *second: str) -> tuple[Controller, Controller]:
    """Two `up` that begin 100 ms apart, run to their ends."""
    with ExitStack() as stack:
        one = stack.enter_context(controller(sandbox, "up", "--yes"))
        time.sleep(APART)  # the attack itself: this far apart
        other = stack.enter_context(controller(sandbox, "up", "--yes", *second))
        for run in (one, other):
            run.end()
        return one, other


def operations(run: Controller) -> int:
    """How many operations it has done."""
    return sum(event["event"] == "done" for event in run.events)


def judge(runs: tuple[Controller, Controller]) -> None:
    """Exactly one has worked, and the other was told who works and since when."""
    codes = [(run.process.returncode, run.events[-1]) for run in runs]
    worked = [run for run in runs if operations(run) and run.process.returncode == 0]
    idle = [run for run in runs if not operations(run)]
    assert (len(worked), len(idle)) == (1, 1), codes
    assert idle[0].process.returncode == 75, codes
    said = idle[0].error()["message"]
    assert re.search(r"is being changed by \S+@\S+ \(vcluster up\) since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", said), said


@pytest.mark.parametrize("times", TIMES)
def test_one_of_two_works(sandbox: Sandbox, empty: Stand, normal: Normal, times: int) -> None:
    sandbox.vcluster("up", "--yes").ok()
    with attack("P11", f"two up 100 ms apart, {times} times, with little to do") as measured:
        for _ in range(times):
            with something_to_do(sandbox, 1.5):
                judge(race(sandbox))
        settle(sandbox, with_nodes(empty), 5)
        measured.figure = f"{times} of {times}: one worked, the other exited 75 and named it"


@pytest.mark.parametrize("times", [pytest.param(1, marks=pytest.mark.short), pytest.param(10, marks=pytest.mark.deep)])
def test_one_of_two_makes_the_cluster(sandbox: Sandbox, empty: Stand, normal: Normal, times: int) -> None:
    with attack("P11", f"two up 100 ms apart on empty hosts, {times} times") as measured:
        for _ in range(times):
            sandbox.vcluster("down").ok()
            judge(race(sandbox))
            settle(sandbox, with_nodes(empty), 5)
        measured.figure = f"{times} of {times}: one worked, the other exited 75; one head, one worker"


def test_the_other_may_wait(sandbox: Sandbox, normal: Normal) -> None:
    sandbox.vcluster("up", "--yes").ok()
    with something_to_do(sandbox, 3), attack("P11", "the second of two up says --wait 60") as measured:
        one, other = race(sandbox, "--wait", "60")
        assert (one.process.returncode, other.process.returncode) == (0, 0)
        assert any(event["text"].startswith("waiting for ") for event in other.events)
        assert (operations(one), operations(other)) == (1, 0)
        measured.figure = "it waited, found nothing left to do, exit 0"
