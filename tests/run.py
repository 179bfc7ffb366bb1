"""Every check, in lanes: `make test`.

What is made up runs beside real hosts, which mostly wait; after them come the contracts of sshd and Docker. What
measures the load that it puts on the machine runs after all of it, alone.
"""

from __future__ import annotations

import sys

from tests.support.lanes import CONTRACTS, MADE_UP, MEASURED, REAL, Lane, run, summed_up, tests

LINT = [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]]
# A quarter of what real hosts want too: some tests here have limits of seconds, and must not starve.
BESIDE = 5
# Tests that start programs wait for them: 270 of them took 190 s in two processes and 105 s in four, on two cores with
# other work. Beside real hosts one fewer. A file stays with one process, and so do its fixtures.
BESIDE_HOSTS, AFTER_THEM = (("-n", count, "--dist", "loadfile") for count in ("3", "4"))
# A shell that forbids bytecode has every process of a test compile all that it imports, seconds each.
COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}


def main() -> int:
    """Run them all; whether all is good is the exit code."""
    lint = [[sys.executable, "-m", *command] for command in LINT]
    made_up = tests("made-up", "not deep and not alone", *BESIDE_HOSTS, *MADE_UP)
    real = tests("real-hosts", "not deep and not alone", REAL)
    contracts = tests("contracts", "not deep and not alone", *AFTER_THEM, CONTRACTS)
    alone = tests("alone", "alone and not deep", *MEASURED)
    hosts = Lane("real-hosts", [real, contracts], live=True)
    ended = run([hosts, Lane("made-up", [*lint, made_up], nice=BESIDE)], COMPILED)
    ended += run([Lane("alone", [alone], live=True)], COMPILED)
    return 0 if summed_up(ended) else 1


if __name__ == "__main__":
    sys.exit(main())
