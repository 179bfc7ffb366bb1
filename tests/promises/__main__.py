"""Run every attack, and write docs/promises.md from what was measured.

With --last-failed only those that failed the last time are run again; the rows of the others stay.
"""

from __future__ import annotations

import json
import shutil
import sys

from tests.promises import page
from tests.support import lanes
from tests.support.figures import FOLDER

# Each keeps figures of its own promises. The first measure how much of the processor they take, and have it alone;
# real hosts mostly wait, and leave time for those that are made up.
MEASURED = ("tests/many", "tests/contract")
REAL = ("tests/e2e/test_bad_input.py", "tests/e2e/test_docs.py", "tests/promises")
MADE_UP = ("tests/sim", "tests/property")
# As many cases are made up as the promises say, and for each course of events as minutes allow.
DEEP = {"VCLUSTER_DEPTH": "full"}


def run(more: list[str]) -> bool:
    """Run them all; whether all passed that there were."""

    def attacks(name: str, *paths: str) -> list[str]:
        return lanes.tests(name, "not short", *paths, *more)

    ended = lanes.run([lanes.Lane("measured", [attacks("measured", *MEASURED)], live=True)], DEEP)
    beside = lanes.Lane("made-up-deep", [[*lanes.IDLE, *attacks("made-up-deep", *MADE_UP)]])
    ended += lanes.run([lanes.Lane("attacks", [attacks("attacks", *REAL)], live=True), beside], DEEP)
    return lanes.summed_up(ended)


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
