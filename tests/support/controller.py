"""The program as a process whose events are read while it runs, so that it can be hit at a chosen moment."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.hosts import Sandbox

Event = dict[str, Any]
APART = 0.1


@dataclass
class Controller:
    """One run of the program."""

    process: subprocess.Popen[str]
    events: list[Event] = field(default_factory=list)
    err: str = ""

    def read_until(self, wanted: Callable[[Event], bool]) -> Event | None:
        """The first event that fits; None when the program ended before."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))
            if wanted(self.events[-1]):
                return self.events[-1]
        return None

    def hit(self, *signals: signal.Signals, apart: float = 0.0) -> float:
        """Send signals, some seconds apart; the seconds from the last one until the program is gone."""
        began = time.monotonic()
        for number, sent in enumerate(signals):
            if number:
                try:
                    self.process.wait(apart)
                except subprocess.TimeoutExpired:
                    began = time.monotonic()
            self.process.send_signal(sent)
        self.end()
        return time.monotonic() - began

    def end(self, seconds: float = 120) -> int:
        """Read the rest, and the exit code."""
        out, self.err = self.process.communicate(timeout=seconds)
        self.events += [json.loads(line) for line in out.splitlines()]
        return self.process.returncode

    def error(self) -> Event:
        """The one error that it printed."""
        (found,) = [event for event in self.events if event["event"] == "error"]
        return found


@contextmanager
def controller(sandbox: Sandbox, *argv: str) -> Iterator[Controller]:
    """Run the program with --json; it does not outlive the block."""
    process = sandbox.start(*argv, "--json")
    try:
        yield Controller(process)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate(timeout=30)
        for pipe in (process.stdout, process.stderr):
            if pipe:
                pipe.close()


def nth(number: int) -> Callable[[Event], bool]:
    """Fits the n-th event, counted from 1."""
    seen = 0

    def fits(_: Event) -> bool:
        nonlocal seen
        seen += 1
        return seen == number

    return fits


def begins(host: str, operation: str) -> Callable[[Event], bool]:
    """Fits the start of an operation on a host."""
    return lambda event: (event["event"], event.get("host"), event.get("operation")) == ("start", host, operation)


def planned(event: Event) -> bool:
    """Fits the plan, which is shown once the lease is held."""
    return bool(event["event"] == "plan")


def moment(event: Event | None) -> str:
    """An event in a few words."""
    if event is None:
        return "its end"
    where = f"{event['host']}: " if event.get("host") else ""
    text = event.get("operation") or event["message"].partition("\n")[0]
    return f"{event['event']} {where}{text}"[:60].strip()


def race(
    sandbox: Sandbox, *more: str, other: Sandbox | None = None, until: Callable[[], None] | None = None
) -> tuple[Controller, Controller]:
    """Two `up`, run to their ends; the second with more options, and its own inventory.

    It begins 100 ms after the first, or where it must come second when `until` has returned.
    """
    with ExitStack() as stack:
        one = stack.enter_context(controller(sandbox, "up", "--yes"))
        if until:
            until()
        else:
            time.sleep(APART)  # the attack itself: this far apart
        two = stack.enter_context(controller(other or sandbox, "up", "--yes", *more))
        for run in (one, two):
            run.end()
        return one, two


def operations(run: Controller) -> int:
    """How many operations it has done."""
    return sum(event["event"] == "done" for event in run.events)


def judge(runs: tuple[Controller, Controller]) -> None:
    """Exactly one has worked, and the other was shown who works and since when."""
    codes = [(run.process.returncode, run.events[-1]) for run in runs]
    worked = [run for run in runs if operations(run) and run.process.returncode == 0]
    idle = [run for run in runs if not operations(run)]
    assert (len(worked), len(idle)) == (1, 1), codes
    assert idle[0].process.returncode == 75, codes
    said = idle[0].error()["message"]
    assert re.search(r"is locked by \S+@\S+ \(vcluster up of \S+\) since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", said), said
