"""P1, P17, P19: the program is killed or interrupted at its events; another run finishes what it began."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from typing import Any

import pytest

from tests.e2e.conftest import Sandbox
from tests.promises.attack import attack
from tests.promises.controller import controller, moment, nth
from tests.promises.hosts import lease_is_free_after, settle, with_nodes

pytestmark = [pytest.mark.e2e, pytest.mark.promise]

Stand = dict[str, set[str]]
KILL, INT = (signal.SIGKILL,), (signal.SIGINT,)
TWICE = (signal.SIGINT, signal.SIGINT)
# So many events are told on two hosts; where it is one less, the last hit comes after the end.
OF_UP, OF_DOWN, OF_SERVE = 17, 7, 9
MORE = 5.0
# The lease is free at once, a remote command ends with its channel, one that does not by its deadline.
GONE = 20.0
SERVE = ("serve", "sandbox/tiny-llama")


def deep(cases: Iterable[Any], daily: set[Any]) -> list[Any]:
    """Every case, of which some are tried every day and the others by `make promises`."""
    return [pytest.param(case, marks=[] if case in daily else [pytest.mark.deep]) for case in cases]


def hit(sandbox: Sandbox, argv: tuple[str, ...], number: int, signals: tuple[signal.Signals, ...]) -> tuple[str, float]:
    """Start the program, hit it after its n-th event; which event that was, and how long it then went on."""
    with controller(sandbox, *argv) as run:
        at = run.read_until(nth(number))
        took = run.hit(*signals, apart=0.1)
        if at and at["event"] != "result":
            # An interpreter on its way out dies of the second signal itself, which a shell shows as 130 too.
            wanted = {KILL: {-signal.SIGKILL}, INT: {130}, TWICE: {130, -signal.SIGINT}}[signals]
            assert run.process.returncode in wanted, (
                f"after {moment(at)}: exit {run.process.returncode}: {run.events[-1]}"
            )
        return moment(at), took


def finish(sandbox: Sandbox, empty: Stand, normal: float, at: str) -> str:
    """Another `up` brings the cluster up in the usual time, and nothing else stands on the hosts; the figures."""
    began = time.monotonic()
    sandbox.vcluster("up", "--yes", "--wait", "20").ok()
    again = time.monotonic() - began
    assert again <= normal + MORE, f"the rerun after {at} took {again:.1f} s, a normal up {normal:.1f} s"
    left = settle(sandbox, with_nodes(empty), GONE)
    assert sandbox.vcluster("plan", "--exit-code").code == 0
    return f"at “{at}”: rerun {again:.1f} s (normal {normal:.1f} s), 0 left after {left:.1f} s"


@pytest.mark.parametrize("number", deep(range(1, OF_UP + 1), {5, 11}))
def test_up_is_killed(sandbox: Sandbox, empty: Stand, normal: float, number: int) -> None:
    sandbox.vcluster("down").ok()
    with attack("P1", f"kill -9 of up after event {number:02}") as measured:
        at, _ = hit(sandbox, ("up", "--yes"), number, KILL)
        measured.figure = finish(sandbox, empty, normal, at)


INTERRUPTS = [*((INT, number) for number in range(1, OF_UP + 1)), *((TWICE, number) for number in range(2, OF_UP, 3))]


@pytest.mark.parametrize("how", deep(INTERRUPTS, {(INT, 8), (TWICE, 8)}), ids=lambda how: f"{len(how[0])}-{how[1]}")
def test_up_is_interrupted(
    sandbox: Sandbox, empty: Stand, normal: float, how: tuple[tuple[signal.Signals, ...], int]
) -> None:
    signals, number = how
    sandbox.vcluster("down").ok()
    limit = 5.0 if signals == INT else 1.0
    with attack("P17", f"SIGINT {'twice' if signals == TWICE else 'once'} in up after event {number:02}") as measured:
        at, took = hit(sandbox, ("up", "--yes"), number, signals)
        assert took <= limit, f"after {at} it took {took:.1f} s to end"
        free = lease_is_free_after(sandbox, time.monotonic(), 5)
        assert free <= 1.5, f"after {at} the lease was held for {free:.1f} s"
        measured.figure = f"gone in {took:.1f} s, lease free; {finish(sandbox, empty, normal, at)}"


@pytest.mark.deep
@pytest.mark.parametrize("signals", [KILL, INT], ids=["kill", "interrupt"])
@pytest.mark.parametrize("number", range(1, OF_DOWN + 1))
def test_down_is_hit(sandbox: Sandbox, empty: Stand, number: int, signals: tuple[signal.Signals, ...]) -> None:
    sandbox.vcluster("up", "--yes").ok()
    name = "kill -9 of" if signals == KILL else "SIGINT in"
    with attack("P1" if signals == KILL else "P17", f"{name} down after event {number}") as measured:
        at, took = hit(sandbox, ("down",), number, signals)
        assert took <= 5
        began = time.monotonic()
        sandbox.vcluster("down", "--wait", "20").ok()
        again = time.monotonic() - began
        left = settle(sandbox, empty, GONE)
        measured.figure = f"at “{at}”: gone in {took:.1f} s, another down {again:.1f} s, {left:.1f} s until 0 left"


@pytest.mark.deep
@pytest.mark.parametrize("signals", [KILL, INT], ids=["kill", "interrupt"])
@pytest.mark.parametrize("number", range(2, OF_SERVE + 1, 3))
def test_serve_is_hit(
    sandbox: Sandbox, empty: Stand, normal: float, number: int, signals: tuple[signal.Signals, ...]
) -> None:
    """The head goes on by itself; another `serve` follows what is under way, and finds it ready."""
    sandbox.vcluster("up", "--yes").ok()
    sandbox.vcluster("stop").ok()
    name = "kill -9 of" if signals == KILL else "SIGINT in"
    with attack("P1" if signals == KILL else "P17", f"{name} serve after event {number}") as measured:
        at, took = hit(sandbox, SERVE, number, signals)
        assert took <= 5
        began = time.monotonic()
        sandbox.vcluster(*SERVE).ok()
        again = time.monotonic() - began
        settle(sandbox, with_nodes(empty), GONE)
        measured.figure = f"at “{at}”: gone in {took:.1f} s, another serve ready after {again:.1f} s"


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.deep)])
def test_nothing_is_left(sandbox: Sandbox, empty: Stand, rounds: int) -> None:
    """Each round kills an `up` somewhere, brings it up, kills a `down` somewhere, and takes it down."""
    with attack("P19", f"up and down {rounds} times, each killed once on its way") as measured:
        for number in range(rounds):
            hit(sandbox, ("up", "--yes"), 1 + (7 * number + 9) % OF_UP, KILL)
            sandbox.vcluster("up", "--yes", "--wait", "20").ok()
            hit(sandbox, ("down",), 1 + number % OF_DOWN, KILL)
            sandbox.vcluster("down", "--wait", "20").ok()
            settle(sandbox, empty, GONE)
        left = "0 containers, volumes, networks, processes, files"
        measured.figure = f"{rounds} of {rounds} rounds: {left}; {measured.seconds:.0f} s"
