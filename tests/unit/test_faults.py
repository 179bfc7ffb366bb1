"""Each line that plants a fault is above a test and applies to today's code: `make faults` takes hours to find out."""

from __future__ import annotations

import pytest

from tests.support.paths import ROOT, TEST_FOLDERS
from tests.support.planted import faults

MARK = "# fault: "


@pytest.mark.spans
def test_every_planted_fault_applies() -> None:
    planted = list(faults())
    assert [str(fault) for fault in planted if not fault.applies(ROOT)] == []
    files = (path for folder in TEST_FOLDERS for path in folder.rglob("test_*.py"))
    lines = [line for path in files for line in path.read_text().splitlines() if line.startswith(MARK)]
    read = {f"{MARK}{fault.file}: {fault.before} → {fault.after}".rstrip() for fault in planted}
    assert [line for line in lines if line not in read] == []
