"""A run of all checks is as good as its worst lane, and ends with one line that has how many passed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import lanes
from tests.support.lanes import Lane, run, summed_up
from tests.support.waiting import until

GOOD, BAD = [sys.executable, "-c", "print('fine')"], [sys.executable, "-c", "print('oh'); raise SystemExit(3)"]
TESTS = "def test_passes(): pass\ndef test_fails(): assert VALUE\n"


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """A shell lets its background programs ignore Ctrl-C, and these hand that on; what starts here must get it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lanes, "FOLDER", tmp_path)
    return tmp_path


def two_tests(folder: Path, *, good: bool, name: str = "") -> list[str]:
    """The command that runs a file of two tests."""
    file = folder / f"test_{good}.py"
    file.write_text(TESTS.replace("VALUE", str(good)))
    own = ("--rootdir", str(folder), "-p", "no:cacheprovider")
    return lanes.tests(name or folder.name, "not deep", *own, str(file))


@pytest.mark.parametrize(
    ("commands", "closing"),
    [
        ([GOOD, GOOD], "0 passed, 0 failed"),
        ([GOOD, BAD], "0 passed, 1 failed"),
        ([BAD, GOOD, BAD], "0 passed, 2 failed"),
    ],
)
def test_each_check_that_fails_counts(
    commands: list[list[str]], closing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good = summed_up(run([Lane("lint", commands)]))
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == closing
    assert good is closing.endswith(" 0 failed")
    assert "fine" in out


@pytest.mark.slow
@pytest.mark.parametrize(("good", "closing"), [(True, "2 passed, 0 failed"), (False, "1 passed, 1 failed")])
def test_tests_are_counted_over_all_lanes(
    good: bool, closing: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lane = Lane(folder.name, [GOOD, two_tests(folder, good=good)])
    assert summed_up(run([lane, Lane("lint", [GOOD])])) is good
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == closing
    assert any(line.endswith("::test_passes") for line in out[out.index(next(x for x in out if "slowest" in x)) :])


@pytest.mark.slow
def test_tests_of_each_command_of_a_lane_are_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = [two_tests(folder, good=good, name=name) for name, good in (("a", False), ("b", False), ("c", True))]
    assert not summed_up(run([Lane("hosts", commands)]))
    assert capsys.readouterr().out.splitlines()[-1] == "4 passed, 2 failed"


@pytest.mark.slow
def test_tests_that_cannot_begin_are_a_failure(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = two_tests(folder, good=True)
    (folder / "test_True.py").write_text("import nothing_of_this_name\n")
    assert not summed_up(run([Lane(folder.name, [command])]))
    assert capsys.readouterr().out.splitlines()[-1] == "0 passed, 1 failed"


# Waits until its session has stepped back, where this system shares the processor among sessions.
STEPPED_BACK = """
import os, pathlib, time
group, end = pathlib.Path("/proc/self/autogroup"), time.monotonic() + 10
while group.exists() and not group.read_text().endswith("nice 7\\n"):
    assert time.monotonic() < end, group.read_text()
    time.sleep(0.01)
print(os.nice(0))
"""


def test_a_lane_steps_back_as_a_session(capsys: pytest.CaptureFixture[str]) -> None:
    """Its niceness alone would count for nothing against Docker and the other lanes, which are other sessions."""
    (ended,) = run([Lane("beside", [[sys.executable, "-c", STEPPED_BACK]], nice=7)])
    out = capsys.readouterr().out
    assert ended.good == [True], out
    assert int(out.split()[-1]) == min(os.nice(0) + 7, 19)


def test_ctrl_c_ends_a_lane_in_its_own_session(folder: Path) -> None:
    """The terminal interrupts this process; what it has started must not continue by itself."""
    begun = folder / "begun"
    wait = f"import pathlib, time; pathlib.Path({str(begun)!r}).touch(); time.sleep(60)"
    lanes_run = (
        "import pathlib, sys; from tests.support import lanes; lanes.FOLDER = pathlib.Path(sys.argv[1]);"
        f"lanes.run([lanes.Lane('beside', [[sys.executable, '-c', {wait!r}]], nice=7)])"
    )
    with subprocess.Popen([sys.executable, "-c", lanes_run, str(folder)], stderr=subprocess.DEVNULL) as process:
        until(begun.exists)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) != 0
