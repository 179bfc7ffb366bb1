"""Plants faults, one at a time, and shows that the test below each turns red: `make faults`.

A fault is a comment above a test, `# fault: FILE: BEFORE → AFTER`: a change of one place in the package by which this
test must fail. All happens in a copy of this tree in a temporary folder; the tree itself is only read. First the tests
run without any fault: what is red then shows nothing. The exit code is 1 where a fault is not caught or does not apply
any more.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import cache_from_source
from multiprocessing.connection import Connection, wait
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.planted import Fault, faults

NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "build", "dist")
# Imported once, before each run forks: else most of a run's time would be theirs.
_SHARED = (
    *("cryptography.hazmat.primitives.asymmetric.ed25519", "docker", "hypothesis.strategies", "jsonschema", "paramiko"),
    *("pydantic", "requests", "rich.live", "rich.table", "ruamel.yaml", "typer"),
)
CAUGHT, NOT_CAUGHT, STALE, ENDED = "caught", "NOT caught", "does not apply any more", "pytest broke off"
# A fault may make a test wait without end. Asserts as they are: pytest would rewrite what is imported above.
OPTIONS = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short", "--timeout=120", "--assert=plain")
_fork = multiprocessing.get_context("fork")


class Red:
    """Remembers which tests failed."""

    def __init__(self, tests: Iterable[str] = ()) -> None:
        self.tests = set(tests)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest for each part of each test."""
        if report.failed:
            self.tests.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Called by pytest for each file: one that cannot be imported is red as a whole."""
        if report.failed:
            self.tests.add(report.nodeid)

    def has(self, test: str) -> bool:
        """Whether a test failed, in any of its forms."""
        return any(red == test or red.startswith((f"{test}[", f"{test}::")) for red in self.tests)


def run(copy: Path, tests: Iterable[str], log: Path) -> Red | None:
    """Run tests in the copy, in a process of their own; which ones are red. None where pytest broke off."""
    here, there = _fork.Pipe(duplex=False)
    process = _fork.Process(target=_run, args=(copy, list(tests), log, there))
    process.start()
    there.close()
    # Not the end of the pipe: what a test has left may hold it open.
    wait([here, process.sentinel])
    red = None
    # The end of the pipe can be read too: one that broke off has sent nothing before.
    with suppress(EOFError):
        red = Red(here.recv()) if here.poll() else None
    here.close()
    process.join()
    return red


def _run(copy: Path, tests: list[str], log: Path, answer: Connection) -> None:
    os.chdir(copy)
    os.environ["PYTHONPATH"] = str(copy)
    # Of the copy, and not of the tree that this process came from.
    for name in [
        name for name in sys.modules if name.partition(".")[0] in ("tests", "vllm_cluster", "vcluster_sandbox")
    ]:
        del sys.modules[name]
    sys.path[:] = [str(copy), *(path for path in sys.path if path not in ("", str(ROOT)))]
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    red = Red()
    # One that is red in one of its forms is red.
    code = pytest.main([*OPTIONS, *(["-x"] if len(tests) == 1 else []), *tests], plugins=[red])
    sys.stdout.flush()
    if code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or red.tests:
        answer.send(red.tests)


def plant(fault: Fault, copy: Path, log: Path) -> str:
    """Plant one fault and return what became of it; the copy is whole again afterwards."""
    path, whole = fault.path(copy), fault.path(copy).read_text()
    compiled = Path(cache_from_source(str(path)))
    try:
        path.write_text(whole.replace(fault.before, fault.after))
        compiled.unlink(missing_ok=True)  # it is known by time and size, which may be those of the whole file
        red = run(copy, [fault.test], log)
    finally:
        path.write_text(whole)
        compiled.unlink(missing_ok=True)
    if red is None:
        return ENDED
    return CAUGHT if red.has(fault.test) else NOT_CAUGHT


def main() -> int:
    """Plant them, and sum up."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="parts of the paths of files or tests; default: all")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where to leave what pytest printed of each")
    words = parser.parse_args()
    chosen = [fault for fault in faults() if not words.parts or any(part in str(fault) for part in words.parts)]
    outcomes = Counter({STALE: 0})
    for fault in chosen:
        if not fault.applies(ROOT):
            outcomes[STALE] += 1
            print(f"{STALE}: {fault}", flush=True)
    planted = [fault for fault in chosen if fault.applies(ROOT)]
    for name in _SHARED:
        importlib.import_module(name)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        copy, logs = Path(folder) / "tree", words.keep or Path(folder)
        logs.mkdir(exist_ok=True)
        shutil.copytree(ROOT, copy, ignore=NOT_COPIED)
        every = dict.fromkeys(fault.test for fault in planted)
        before = run(copy, every, logs / "before.log")
        if before is None or before.tests:
            print("red without any fault:", *sorted(before.tests if before else [ENDED]), sep="\n  ")
            return 1
        print(f"{len(every)} tests are green without any fault, in {time.monotonic() - began:.0f} s", flush=True)
        for number, fault in enumerate(planted):
            outcome = plant(fault, copy, logs / f"{number}.log")
            outcomes[outcome] += 1
            print(f"{outcome}: {fault}", flush=True)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items() if count)
    print(f"{len(chosen)} faults: {counts}, in {time.monotonic() - began:.0f} s")
    return 0 if outcomes[CAUGHT] == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
