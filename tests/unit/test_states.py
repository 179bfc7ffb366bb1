"""Tests on real hosts run alone, or in an order in which little has to be done between them."""

from __future__ import annotations

import itertools

import pytest

from tests.support.states import DOWN, LEFT, PLAIN, SERVE, STATES, STOP, UP, Need, fits, ordered, steps

STAY = [Need(state, state) for state in ("empty", "up", "serving")]
GO = [Need("empty", "up"), Need("up", "empty"), Need("up", "serving"), Need("serving", "up")]


def commands(needs: list[Need]) -> int:
    """How often the cluster has to be brought elsewhere for tests in this order."""
    count, current = 0, "fresh"
    for need in needs:
        count += len(steps(current, need.state))
        current = current if need.leaves == need.state else need.leaves
    return count


@pytest.mark.parametrize(
    ("current", "wanted", "argv"),
    [
        ("fresh", "empty", []),
        ("fresh", "up", [UP]),
        ("up", "empty", [DOWN]),
        ("serving", "up", [STOP]),
        ("serving", "served", []),
        ("plain", "served", []),
        ("served", "serving", [UP, SERVE]),
        ("serving", "plain", [STOP, PLAIN]),
        ("empty", "plain", [UP, PLAIN]),
        ("changed", "served", [UP, PLAIN]),
        ("changed", "up", [UP]),
        ("own", "up", [DOWN, UP]),  # after a test that failed
        ("own", "serving", [DOWN, UP, SERVE]),
        ("own", "none", []),
    ],
)
def test_how_a_state_is_reached(current: str, wanted: str, argv: list[tuple[str, ...]]) -> None:
    assert steps(current, wanted) == argv


def test_every_state_can_be_reached_from_every_other() -> None:
    for current, wanted in itertools.product(LEFT, STATES):
        assert fits(current, wanted) or steps(current, wanted) or {current, wanted} <= {"fresh", "empty"}


def test_each_test_runs_once_and_one_end_is_the_beginning_of_another() -> None:
    needs = [*STAY, *GO, *GO, *STAY, Need("own", "own"), Need("none", "none"), Need("fresh", "up")]
    assert commands(needs) == 9
    order = ordered(needs, lambda need: need)
    assert sorted(order) == sorted(needs)
    assert commands(order) == 0
    assert order[:2] == [Need("none", "none"), Need("fresh", "up")]
    assert order[-1] == Need("own", "own")
