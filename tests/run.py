"""Every check, in lanes: `make test`.

What is made up runs beside real hosts, which mostly wait; after them come the contracts of sshd and Docker. What
measures the load that it puts on the machine runs after all of it, alone but for what waits for a silence meanwhile.
"""

from __future__ import annotations

import sys

from tests.support.lanes import CONTRACTS, MADE_UP, MEASURED, QUIET, REAL, Lane, run, summed_up, tests

LINT = [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]]
# A quarter of what real hosts want too: some tests here have limits of seconds, and must not starve.
BESIDE = 5
# Tests that start programs wait for them: 270 of them took 190 s in two processes and 105 s in four, on two cores with
# other work. Beside real hosts one fewer, and of the contracts, which wait the most, more. A file stays with one
# process, and so do its fixtures. What is made up begins in the order of MADE_UP: xdist's own, files of many tests
# first, ends with single tests of a minute while two of three processes have nothing to do.
BESIDE_HOSTS = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")
AFTER_THEM = ("-n", "6", "--dist", "loadfile")
# Each waits up to half a minute, for a silence of its own.
WAITING = ("-n", str(len(QUIET)), "--dist", "loadfile")
# pytest compiles each test file as it first loads it, 12 s of processor time in all: once, while mypy runs, and not in
# each of three processes.
LOADED = ["pytest", "--collect-only", "-o", "addopts=", "-p", "no:terminal", "-p", "no:cacheprovider"]
# A shell that forbids bytecode has every process of a test compile all that it imports, seconds each.
COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}


def main() -> int:
    """Run them all; whether all is good is the exit code."""
    lint = [[sys.executable, "-m", *command] for command in LINT]
    made_up = tests("made-up", "not deep and not alone", *BESIDE_HOSTS, *MADE_UP)
    real = tests("real-hosts", "not deep and not alone", *REAL)
    contracts = tests("contracts", "not deep and not alone", *AFTER_THEM, *CONTRACTS)
    alone = tests("alone", "alone and not quiet and not deep", *MEASURED)
    quiet = tests("quiet", "quiet and not deep", *WAITING, *QUIET)
    hosts = Lane("real-hosts", [real, contracts], live=True)
    loaded = Lane("loaded", [[sys.executable, "-m", *LOADED, *MADE_UP]], nice=BESIDE)
    ended = run([hosts, Lane("made-up", [*lint, made_up], nice=BESIDE), loaded], COMPILED)
    ended += run([Lane("alone", [alone], live=True), Lane("quiet", [quiet])], COMPILED)
    return 0 if summed_up(ended) else 1


if __name__ == "__main__":
    sys.exit(main())
