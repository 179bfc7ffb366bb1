"""P1, P17, P19: the program is killed or interrupted at its events; another run finishes what it began."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field

import pytest

from tests.support.attack import attack
from tests.support.breaks import HOSTS, Normal, lease_is_free_after, settle, timed, with_nodes
from tests.support.controller import controller, moment, nth
from tests.support.hosts import Sandbox

pytestmark = [pytest.mark.e2e, pytest.mark.promise, pytest.mark.deep]

Stand = dict[str, set[str]]
Signals = tuple[signal.Signals, ...]
KILL, INT = (signal.SIGKILL,), (signal.SIGINT,)
TWICE = (signal.SIGINT, signal.SIGINT)
NAMES = {KILL: "kill -9 of", INT: "SIGINT in", TWICE: "SIGINT twice in"}
PROMISE = {KILL: "P1", INT: "P17", TWICE: "P17"}
# So many events are shown on two hosts; where it is one less, the last hit comes after the end.
OF_UP, OF_DOWN, OF_SERVE = 17, 7, 9
MORE = 5.0
# The lease is free at once, a remote command ends with its channel, one that does not by its deadline.
GONE = 20.0
SERVE = ("serve", "sandbox/tiny-llama")
CASES = [
    (KILL, tuple(range(1, OF_UP + 1))),
    (INT, tuple(range(1, OF_UP + 1))),
    (TWICE, tuple(range(2, OF_UP, 3))),
]


@dataclass
class Took:
    """The longest seconds of each kind, over all rounds of an attack."""

    longest: dict[str, float] = field(default_factory=dict)

    def note(self, what: str, seconds: float, limit: float, at: str) -> None:
        """Keep one, which must be within its limit."""
        assert seconds <= limit, f"{what} at {at}: {seconds:.1f} s, more than {limit:.1f} s"
        self.longest[what] = max(seconds, self.longest.get(what, 0.0))

    def __str__(self) -> str:
        return ", ".join(f"{what} {seconds:.1f} s" for what, seconds in self.longest.items())


def hit(sandbox: Sandbox, argv: tuple[str, ...], number: int, signals: Signals) -> tuple[str, float]:
    """Start the program, hit it after its n-th event; which event that was, and how long it then went on."""
    with controller(sandbox, *argv) as run:
        at = run.read_until(nth(number))
        took = run.hit(*signals, apart=0.1)
        if at and at["event"] != "result":
            # An interpreter on its way out, after its last event, dies of the signal itself: a shell shows 130 too.
            wanted = {-signal.SIGKILL} if signals == KILL else {130, -signal.SIGINT}
            assert run.process.returncode in wanted, (
                f"after {moment(at)}: exit {run.process.returncode}: {run.events[-1]}"
            )
        return moment(at), took


def hit_up(sandbox: Sandbox, empty: Stand, normal: Normal, number: int, signals: Signals, *, took: Took) -> None:
    """On empty hosts: hit `up` after an event; another one brings the cluster up, and nothing else is there."""
    at, gone = hit(sandbox, ("up", "--yes"), number, signals)
    took.note("gone in", gone, 1.0 if signals == TWICE else 5.0, at)
    took.note("lease free in", lease_is_free_after(sandbox, time.monotonic(), 5), 1.5, at)
    again = timed(sandbox, "up", "--yes", "--wait", "20")
    took.note("0 left after", settle(sandbox, with_nodes(empty), GONE), GONE, at)
    assert sandbox.vcluster("plan", "--exit-code").code == 0, f"after {at}: the plan is not empty"
    took.note("rerun", again, normal.beside(again, MORE) + MORE, at)


def hit_down(sandbox: Sandbox, empty: Stand, number: int, signals: Signals, took: Took) -> None:
    """On a cluster that is up: hit `down` after an event; another one leaves nothing."""
    at, gone = hit(sandbox, ("down", "--yes"), number, signals)
    took.note("gone in", gone, 5.0, at)
    took.note("another down", timed(sandbox, "down", "--yes", "--wait", "20"), 20.0, at)
    took.note("0 left after", settle(sandbox, empty, GONE), GONE, at)


@pytest.mark.cluster("empty")
@pytest.mark.parametrize(("signals", "numbers"), CASES)
def test_up_and_down_are_hit(
    sandbox: Sandbox, empty: Stand, normal: Normal, signals: Signals, numbers: tuple[int, ...]
) -> None:
    """Each round begins and ends on empty hosts, and hits both verbs on their way."""
    took = {"up": Took(), "down": Took()}
    name, promise = NAMES[signals], PROMISE[signals]
    with (
        attack(promise, f"{name} up after each of its events") as up,
        attack(promise, f"{name} down after each of its events") as down,
        attack("P19", f"rounds of up and down with {name} each on its way") as left,
    ):
        for number in numbers:
            hit_up(sandbox, empty, normal, number, signals, took=took["up"])
            hit_down(sandbox, empty, 1 + number % OF_DOWN, signals, took["down"])
        up.figure = (
            f"{len(numbers)} of {len(numbers)} converge; at most: {took['up']} (a normal up: {normal.seconds:.1f} s)"
        )
        down.figure = f"{len(numbers)} of {len(numbers)} converge; at most: {took['down']}"
        left.figure = f"{len(numbers)} rounds: 0 containers, volumes, networks, processes, files on {len(HOSTS)} hosts"


@pytest.mark.parametrize("signals", [KILL, INT])
def test_serve_is_hit(sandbox: Sandbox, empty: Stand, signals: Signals) -> None:
    """The head continues by itself; another `serve` follows what is under way, and finds it ready."""
    took = Took()
    numbers = range(2, OF_SERVE + 1, 3)
    with attack(PROMISE[signals], f"{NAMES[signals]} serve after every third of its events") as measured:
        for number in numbers:
            sandbox.vcluster("up", "--yes").ok()
            sandbox.vcluster("stop", "--yes").ok()
            at, gone = hit(sandbox, SERVE, number, signals)
            took.note("gone in", gone, 5.0, at)
            took.note("another serve is ready after", timed(sandbox, *SERVE), 240.0, at)
            settle(sandbox, with_nodes(empty), GONE)
        measured.figure = f"{len(numbers)} of {len(numbers)}; at most: {took}"
