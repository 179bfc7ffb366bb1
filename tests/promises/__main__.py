"""Run every attack, and write docs/promises.md from what was measured.

With --last-failed only those that failed the last time are run again; the rows of the others stay.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

from tests.e2e.conftest import ROOT
from tests.promises import page
from tests.promises.figures import FOLDER

# Those that are there: each keeps figures of its own promises.
TESTS = ("sim", "many", "contract", "property", "e2e/test_3_bad_input.py", "promises")
# How many cases are made up: as many as the promises say, and for each course of events as minutes allow.
DEEP = {"VCLUSTER_DEEP": "1", "VCLUSTER_SIM_EXAMPLES": "300"}


def main() -> int:
    """Run, write, and say by the exit code whether every promise was kept."""
    if "--last-failed" in sys.argv:
        for file in FOLDER.glob("*.json"):
            if not json.loads(file.read_text())["passed"]:
                file.unlink()
    else:
        shutil.rmtree(FOLDER, ignore_errors=True)
    there = [str(path) for name in TESTS if (path := ROOT / "tests" / name).exists()]
    argv = [sys.executable, "-m", "pytest", "-m", "not short", *there, *sys.argv[1:]]
    code = subprocess.run(argv, cwd=ROOT, env={**os.environ, **DEEP}, check=False).returncode
    held = page.write()
    return code or (0 if held else 1)


if __name__ == "__main__":
    sys.exit(main())
