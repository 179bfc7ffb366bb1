"""A failed test that attacks a promise is a row of the table too; a run names what it leaves for `make promises`."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Generator, Sequence

import pytest

from tests.support.figures import record

pytest_plugins = ["tests.support.cluster_state"]
LEFT: Counter[str] = Counter()
# A test names its inventory: the one in the shell of whoever runs it may be a cluster that serves.
os.environ.pop("VCLUSTER_INVENTORY", None)


# Under nohup every program that a test starts would ignore it too; a signal with a handler is a program's own again.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write what broke for each promise that the test's marker names: `@pytest.mark.promise("P24")`."""
    report = yield
    if report.failed and call.excinfo:
        reason = next(iter(str(call.excinfo.value).splitlines()), "") or call.excinfo.typename
        for marker in item.iter_markers("promise"):
            for promise in marker.args:
                record(promise, item.name, f"broken: {reason[:160]}", False)
    return report


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run be about some promises only."""
    parser.addoption("--promises", default="", help="run only the attacks on these promises: P31,P34")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what attacks none of the promises named; a marker without numbers attacks those of its module."""
    wanted = {word for word in config.getoption("--promises").split(",") if word}
    if wanted:
        items[:] = [item for item in items if wanted & _attacked(item)]


def _attacked(item: pytest.Item) -> set[str]:
    markers = list(item.iter_markers("promise"))
    numbers = {number for marker in markers for number in marker.args}
    if any(not marker.args for marker in markers):
        numbers |= set(re.findall(r"\bP\d+\b", getattr(item, "module", None).__doc__ or ""))
    return numbers


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Count what is too long for this run, file by file."""
    LEFT.update(item.path.stem for item in items if item.get_closest_marker("deep"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what was left."""
    if LEFT:
        files = ", ".join(f"{count} of {name}" for name, count in sorted(LEFT.items()))
        terminalreporter.line(f"left for `make promises`, which takes longer: {files}")
