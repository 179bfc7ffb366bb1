"""Runs checks in lanes beside each other, and sums up what came of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

import pytest

from tests.support.paths import ROOT


def everywhere(kind: str) -> tuple[str, ...]:
    """The folders of one kind of tests: that in tests, and in each feature that has some."""
    of_features = (ROOT / "vllm_cluster" / "features").glob(f"*/tests/{kind}")
    return (f"tests/{kind}", *sorted(path.relative_to(ROOT).as_posix() for path in of_features))


# What `make test` runs in which lane; some of what is measured is in folders of the others.
REAL, CONTRACTS = everywhere("e2e"), everywhere("contract")
# Those with the longest files first: the others fill what is left of three processes at the end.
MADE_UP = (*everywhere("sim"), *everywhere("property"), *everywhere("unit"), "tests/gpu", "tests/promises")
MEASURED = (*everywhere("many"), "tests/unit/links")
QUIET = ("tests/many/test_many_hosts.py", "tests/contract/test_breaks.py", "tests/unit/docker/test_hostile_docker.py")
FOLDER = ROOT / "build" / "lanes"
JUNIT = "--junitxml"
SLOWEST = 20
GOOD = {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}


@dataclass(frozen=True)
class Lane:
    """Commands that run one after the other; their output is a log that is shown at the end, or shown as it comes.

    `nice` is how far they step back for the other lanes and for Docker: 0 not at all, 19 as far as possible.
    """

    name: str
    commands: Sequence[Sequence[str]]
    live: bool = False
    nice: int = 0

    @property
    def log(self) -> Path:
        """What its commands print, where it is not live."""
        return FOLDER / f"{self.name}.log"

    @property
    def results(self) -> list[Path]:
        """What its tests came to, as JUnit's XML: a file for each command that runs tests."""
        words = [word.partition("=") for command in self.commands for word in command]
        return [Path(path) for option, _, path in words if option == JUNIT]


@dataclass(frozen=True)
class Ended:
    """A lane that has ended: whether each command was good, and the seconds of all."""

    lane: Lane
    good: Sequence[bool]
    seconds: float


def tests(name: str, marked: str, *argv: str) -> list[str]:
    """The command that runs tests of a lane; its name is that of their results."""
    # A cache of its own: it remembers what failed, and another run beside it or after it would forget that.
    own = [f"{JUNIT}={FOLDER / name}.xml", "-o", f"cache_dir={ROOT / '.pytest_cache' / name}"]
    return [sys.executable, "-m", "pytest", "-m", marked, *own, *argv]


def run(lanes: Iterable[Lane], environment: Mapping[str, str] = {}) -> list[Ended]:
    """Run lanes beside each other; the logs of those that are not live are shown when all have ended."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    lanes = list(lanes)
    for lane in lanes:
        for results in lane.results:
            results.unlink(missing_ok=True)
    # Those that have a session of their own: the terminal interrupts its own alone.
    apart: list[subprocess.Popen[bytes]] = []
    with ThreadPoolExecutor(len(lanes)) as pool:
        try:
            ended = list(pool.map(lambda lane: _run(lane, {**os.environ, **environment}, apart), lanes))
        except KeyboardInterrupt:
            for process in apart:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGINT)
            raise
    for one in ended:
        if not one.lane.live:
            print(f"\n==== {one.lane.name} ====\n{one.lane.log.read_text()}", flush=True)
    return ended


def _run(lane: Lane, environment: Mapping[str, str], apart: list[subprocess.Popen[bytes]]) -> Ended:
    began, good = time.monotonic(), []
    with lane.log.open("wb") as log:
        for command in lane.commands:
            told = f"$ {' '.join(command)}".replace(f"{ROOT}/", "")
            if lane.live:
                print(told, flush=True)
            else:
                log.write(f"{told}\n".encode())
                log.flush()
            out = None if lane.live else log
            code = _wait(lane, command, environment, out, apart)
            good.append(code in GOOD)
            if code in (pytest.ExitCode.INTERRUPTED, -signal.SIGINT):
                break
    return Ended(lane, good, time.monotonic() - began)


def _wait(
    lane: Lane,
    command: Sequence[str],
    environment: Mapping[str, str],
    out: IO[bytes] | None,
    apart: list[subprocess.Popen[bytes]],
) -> int:
    """Run one command to its end; the exit code."""
    if not lane.nice:
        return subprocess.run(command, cwd=ROOT, env=environment, stdout=out, stderr=out, check=False).returncode
    # Linux shares the processor among sessions first: the niceness of a process counts inside its session alone.
    argv = ["nice", "-n", str(lane.nice), *command]
    with subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=out, stderr=out, start_new_session=True) as process:
        with suppress(OSError):  # macOS and containers without it have no such file
            Path(f"/proc/{process.pid}/autogroup").write_text(str(lane.nice))
        apart.append(process)
        return process.wait()


def summed_up(ended: Iterable[Ended]) -> bool:
    """Print each lane's time, the slowest tests and one closing line; whether all was good."""
    passed = failed = skipped = 0
    times: list[tuple[float, str]] = []
    for one in ended:
        files = [list(ElementTree.parse(path).iter("testcase")) for path in one.lane.results if path.exists()]
        cases = [case for file in files for case in file]
        broken = [sum(case.find("failure") is not None or case.find("error") is not None for case in f) for f in files]
        left_out = sum(case.find("skipped") is not None for case in cases)
        # A command that fails without a failed test is a check that failed: lint, or tests that could not begin.
        bad = sum(broken) + one.good.count(False) - sum(map(bool, broken))
        passed, failed, skipped = passed + len(cases) - sum(broken) - left_out, failed + bad, skipped + left_out
        times += [(float(case.get("time", 0)), f"{case.get('classname')}::{case.get('name')}") for case in cases]
        print(f"{one.lane.name}: {one.seconds:.0f} s, {len(cases)} tests, {bad} failed")
    print(f"\nthe {SLOWEST} slowest, with what they set up:")
    for seconds, name in sorted(times, reverse=True)[:SLOWEST]:
        print(f"{seconds:7.1f} s  {name}")
    if skipped:
        print(f"{skipped} skipped")
    print(f"{passed} passed, {failed} failed", flush=True)
    return failed == 0
