"""Run every attack, and write docs/promises.md from what was measured.

With --last-failed only those that failed the last time are run again; the rows of the others stay.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.promises import page
from tests.support.figures import FOLDER
from tests.support.paths import ROOT

# Each keeps figures of its own promises. The first measure how much of the processor they take, and have it alone;
# real hosts mostly wait, and leave time for those that are made up.
MEASURED = ("many", "contract")
REAL = ("e2e/test_3_bad_input.py", "promises")
MADE_UP = ("sim", "property")
# How many cases are made up: as many as the promises say, and for each course of events as minutes allow.
DEEP = {"VCLUSTER_DEEP": "1", "VCLUSTER_SIM_EXAMPLES": "300"}
# Only what the others leave idle.
BESIDE = ("nice", "-n", "19")
SAID = ROOT / "build" / "made-up.log"


def argv(names: tuple[str, ...], more: list[str]) -> list[str]:
    """The command that runs the tests of these names."""
    # A cache of its own: it remembers what failed, and another run beside it or after it would forget that.
    cache = ROOT / ".pytest_cache" / names[0].replace("/", "-")
    options = ["-m", "not short", "--durations=20", "-o", f"cache_dir={cache}"]
    return [sys.executable, "-m", "pytest", *options, *(f"tests/{name}" for name in names), *more]


def run(more: list[str]) -> bool:
    """Run them all; whether all passed that there were."""
    SAID.parent.mkdir(exist_ok=True)
    environment = {**os.environ, **DEEP}
    measured = subprocess.run(argv(MEASURED, more), cwd=ROOT, env=environment, check=False)
    with SAID.open("wb") as said:
        made_up = [*BESIDE, *argv(MADE_UP, more)]
        beside = subprocess.Popen(made_up, cwd=ROOT, env=environment, stdout=said, stderr=subprocess.STDOUT)
    try:
        real = subprocess.run(argv(REAL, more), cwd=ROOT, env=environment, check=False)
        codes = {measured.returncode, real.returncode, beside.wait()}
    finally:
        beside.terminate()
    print(SAID.read_text())
    return codes <= {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}


def main() -> int:
    """Run, write, and say by the exit code whether every promise was kept."""
    more = sys.argv[1:]
    if "--last-failed" in more:
        more.append("--last-failed-no-failures=none")
        for file in FOLDER.glob("*.json"):
            if not json.loads(file.read_text())["passed"]:
                file.unlink()
    else:
        shutil.rmtree(FOLDER, ignore_errors=True)
    passed = run(more)
    held = page.write()
    return 0 if passed and held else 1


if __name__ == "__main__":
    sys.exit(main())
