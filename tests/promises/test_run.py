"""Every test is in a lane of `make test`, and what a change does not wait for is run by `make promises`."""

from __future__ import annotations

from collections.abc import Sequence

from tests.promises.__main__ import MADE_UP, MEASURED, REAL
from tests.support import lanes
from tests.support.paths import ROOT, TEST_FOLDERS

DEEP, ALONE = "pytest.mark.deep", "pytest.mark.alone"


def test_what_is_left_for_make_promises_is_run_by_it() -> None:
    assert left_out(DEEP, (*MEASURED, *REAL, *MADE_UP), more_than=10) == []


def test_what_measures_its_time_is_run_by_it_with_nothing_beside() -> None:
    """The lane of what is made up leaves these out."""
    assert left_out(ALONE, MEASURED, *MADE_UP) == []


# fault: tests/support/lanes.py: "tests/gpu", "tests/promises") → "tests/promises")
def test_each_module_is_in_a_lane_of_make_test() -> None:
    run = (*lanes.REAL, *lanes.CONTRACTS, *lanes.MADE_UP, *lanes.MEASURED)
    assert left_out("def test_", run, more_than=100) == []
    assert left_out(ALONE, (*lanes.MEASURED, *lanes.QUIET)) == []
    assert left_out("pytest.mark.quiet", lanes.QUIET) == []


def left_out(mark: str, run: Sequence[str], *among: str, more_than: int = 0) -> list[str]:
    """The modules of these folders, or of all, that have the mark and that no lane runs."""
    folders = [ROOT / folder for folder in among] or TEST_FOLDERS
    files = {path for folder in folders for path in folder.rglob("test_*.py")} - {ROOT / __file__}
    marked = {path for path in files if mark in path.read_text()}
    assert len(marked) > more_than
    there = [ROOT / path for path in run]
    left = [path for path in marked if not any(path == one or one in path.parents for one in there)]
    return sorted(str(path.relative_to(ROOT)) for path in left)
