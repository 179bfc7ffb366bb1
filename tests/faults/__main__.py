"""Plants faults, one at a time, and shows that the tests named for each turn red: `make faults`.

All happens in a copy of this tree in a temporary folder; the tree itself is only read. First the tests run without
any fault: what is red then shows nothing. The exit code is 1 where a fault is not caught or does not apply any more.
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
from collections.abc import Iterable, Sequence
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
CAUGHT, NOT_CAUGHT, GONE, ENDED = "caught", "NOT caught", "does not apply any more", "pytest broke off"
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
    """What became of one fault; the copy is whole again afterwards."""
    if not fault.applies(copy):
        return GONE
    path, whole = fault.path(copy), fault.path(copy).read_text()
    compiled = Path(cache_from_source(str(path)))
    try:
        path.write_text(fault.changed(copy))
        compiled.unlink(missing_ok=True)  # it is known by time and size, which may be those of the whole file
        red = run(copy, fault.tests, log)
    finally:
        path.write_text(whole)
        compiled.unlink(missing_ok=True)
    if red is None:
        return ENDED
    return CAUGHT if all(map(red.has, fault.tests)) else NOT_CAUGHT


def chosen(names: Sequence[str], with_hosts: bool) -> list[Fault]:
    """The faults of these names or rooms; all, where none is named."""
    known = list(faults())
    if unknown := set(names) - {word for fault in known for word in (fault.name, fault.room)}:
        raise SystemExit(f"no fault and no room: {', '.join(sorted(unknown))}")
    found = [fault for fault in known if not names or {fault.name, fault.room} & set(names)]
    return [fault for fault in found if with_hosts or not fault.hosts]


def main() -> int:
    """Plant them, and sum up."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults or rooms; all, where none is named")
    parser.add_argument("--hosts", action="store_true", help="also those whose tests need real hosts")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where to leave what pytest printed of each")
    words = parser.parse_args()
    planted = chosen(words.names, words.hosts)
    for name in _SHARED:
        importlib.import_module(name)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        copy, logs = Path(folder) / "tree", words.keep or Path(folder)
        logs.mkdir(exist_ok=True)
        shutil.copytree(ROOT, copy, ignore=NOT_COPIED)
        every = dict.fromkeys(test for fault in planted for test in fault.tests)
        before = run(copy, every, logs / "before.log")
        if before is None or before.tests:
            print("red without any fault:", *sorted(before.tests if before else [ENDED]), sep="\n  ")
            return 1
        print(f"{len(every)} tests are green without any fault, in {time.monotonic() - began:.0f} s", flush=True)
        outcomes: Counter[str] = Counter()
        for fault in planted:
            outcome = plant(fault, copy, logs / f"{fault.name}.log")
            outcomes[outcome] += 1
            print(f"{outcome:11} {fault.room:10} {fault.name}", flush=True)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
    print(f"{len(planted)} planted: {counts}, in {time.monotonic() - began:.0f} s")
    return 0 if set(outcomes) <= {CAUGHT} else 1


if __name__ == "__main__":
    sys.exit(main())
