"""A long step of the sandbox is not silent."""

from __future__ import annotations

from tests.support.waiting import until
from vcluster_sandbox.progress import steady


# fault: vcluster_sandbox/progress.py: lines.get(timeout=silence) → lines.get()
def test_the_last_line_comes_again_with_its_time_until_the_next() -> None:
    shown: list[str] = []
    with steady(shown.append, 0.01) as report:
        report("installing it")
        until(lambda: len(shown) >= 3, 10)
        report("making it")
        until(lambda: any(line.startswith("  making it: ") for line in shown), 10)
    assert shown[:2] == ["installing it", "  installing it: 0 s so far"]
