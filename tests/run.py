"""Every check, in lanes: `make test`.

What is made up runs beside real hosts, which mostly wait. What measures the load that it puts on the machine runs
after both, alone.
"""

from __future__ import annotations

import sys

from tests.support.lanes import Lane, run, summed_up, tests

LINT = [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]]
MADE_UP = ("tests/unit", "tests/gpu", "tests/property", "tests/sim", "tests/contract", "tests/promises")
# A quarter of what real hosts want too: some tests here have limits of seconds, and must not starve.
BESIDE = 5
# A process for each core: real hosts take little of them. A file stays with one process, and so do its fixtures.
SPREAD = ("-n", "2", "--dist", "loadfile")
# A shell that forbids bytecode has every process of a test compile all that it imports, seconds each.
COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}


def main() -> int:
    """Run them all; whether all is good is the exit code."""
    lint = [[sys.executable, "-m", *command] for command in LINT]
    made_up = tests("made-up", "not deep and not alone", *SPREAD, *MADE_UP)
    real = tests("real-hosts", "not deep and not alone", "tests/e2e")
    alone = tests("alone", "alone and not deep", "tests")
    ended = run([Lane("real-hosts", [real], live=True), Lane("made-up", [*lint, made_up], nice=BESIDE)], COMPILED)
    ended += run([Lane("alone", [alone], live=True)], COMPILED)
    return 0 if summed_up(ended) else 1


if __name__ == "__main__":
    sys.exit(main())
