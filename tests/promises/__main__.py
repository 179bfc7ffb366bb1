"""Run every attack, and write docs/promises.md from what was measured.

With --last-failed only those that failed the last time are run again, and with `P31 P34` only those of some promises;
the rows of the others stay.
"""

from __future__ import annotations

import json
import shutil
import sys

from tests.promises import page
from tests.promises.texts import PROMISES
from tests.support import lanes
from tests.support.figures import FOLDER

# Each keeps figures of its own promises. The first measure how much of the processor they take, and have it alone;
# real hosts mostly wait, and leave time for those that are made up.
MEASURED = (
    *lanes.everywhere("many"),
    *lanes.CONTRACTS,
    "tests/unit/docker/test_hostile_docker.py",
    "tests/unit/links/test_link_test.py",
)
REAL = (*lanes.REAL, "tests/promises")
MADE_UP = (
    *lanes.everywhere("sim"),
    *lanes.everywhere("property"),
    *lanes.everywhere("unit")[1:],
    "tests/unit/cli",
    "tests/unit/docker",
    "tests/unit/explain",
    "tests/unit/spread",
    "tests/unit/test_docs.py",
    "tests/unit/test_features.py",
    "tests/unit/test_release.py",
)
# As many cases are made up as the promises ask for, and for each course of events as minutes allow.
DEEP = {"VCLUSTER_DEPTH": "full"}
# 125 orders of calls took 282 s on a machine that had other work.
LONG = ("--timeout", "2400")


def run(more: list[str]) -> bool:
    """Run them all; whether all passed that there were."""

    def attacks(name: str, *paths: str, marked: str = "") -> list[str]:
        return lanes.tests(name, marked, *LONG, *paths, *more)

    ended = lanes.run([lanes.Lane("measured", [attacks("measured", *MEASURED)], live=True)], DEEP)
    beside = lanes.Lane("made-up-deep", [attacks("made-up-deep", *MADE_UP, marked="not alone")], nice=19)
    ended += lanes.run([lanes.Lane("attacks", [attacks("attacks", *REAL)], live=True), beside], DEEP)
    return lanes.summed_up(ended)


def main() -> int:
    """Run, write, and show by the exit code whether every promise was kept."""
    only = [word for word in sys.argv[1:] if word in PROMISES]
    more = [word for word in sys.argv[1:] if word not in PROMISES]
    if only:
        more.append(f"--promises={','.join(only)}")
    if "--last-failed" in more:
        more.append("--last-failed-no-failures=none")
        for file in FOLDER.glob("*.json"):
            if not json.loads(file.read_text())["passed"]:
                file.unlink()
    else:
        shutil.rmtree(FOLDER, ignore_errors=True)
    passed = run(more)
    held = page.write(only)
    return 0 if passed and held else 1


if __name__ == "__main__":
    sys.exit(main())
