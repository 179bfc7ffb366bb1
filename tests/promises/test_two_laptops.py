"""P11: two `up` at the same time, again and again."""

from __future__ import annotations

import pytest

from tests.support.attack import attack
from tests.support.breaks import settle, something_to_do, with_nodes
from tests.support.controller import controller, judge, operations, planned, race
from tests.support.hosts import Sandbox

pytestmark = [pytest.mark.e2e, pytest.mark.promise, pytest.mark.deep]

Stand = dict[str, set[str]]
TIMES = 200


@pytest.mark.cluster("up")
def test_one_of_two_works(sandbox: Sandbox, empty: Stand) -> None:
    with attack("P11", f"two up 100 ms apart, {TIMES} times, with little to do") as measured:
        for _ in range(TIMES):
            with something_to_do(sandbox, 1.5):
                judge(race(sandbox))
        settle(sandbox, with_nodes(empty), 5)
        measured.figure = f"{TIMES} of {TIMES}: one worked, the other exited 75 and named it"


@pytest.mark.cluster("empty", leaves="up")
def test_one_of_two_makes_the_cluster(sandbox: Sandbox, empty: Stand) -> None:
    times = 10
    with attack("P11", f"two up 100 ms apart on empty hosts, {times} times") as measured:
        for number in range(times):
            if number:
                sandbox.vcluster("down", "--yes").ok()
            judge(race(sandbox))
            settle(sandbox, with_nodes(empty), 5)
        measured.figure = f"{times} of {times}: one worked, the other exited 75; one head, one worker"


@pytest.mark.cluster("up")
def test_the_other_may_wait(sandbox: Sandbox) -> None:
    with something_to_do(sandbox, 3), attack("P11", "the second of two up has --wait 60") as measured:
        with controller(sandbox, "up", "--yes") as one:
            assert one.read_until(planned)
            with controller(sandbox, "up", "--yes", "--wait", "60") as other:
                for run in (one, other):
                    run.end()
        assert (one.process.returncode, other.process.returncode) == (0, 0)
        assert any(event["message"].startswith("waiting for ") for event in other.events)
        assert (operations(one), operations(other)) == (1, 0)
        measured.figure = "it waited, found nothing left to do, exit 0"
