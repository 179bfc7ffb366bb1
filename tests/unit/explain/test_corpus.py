"""The corpus: how many logs are diagnosed right, and how many wrong."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.corpus import CORPUS, FOLDER, Case, judged
from tests.support.figures import record
from tests.support.logs import explained
from vllm_cluster.kernel.explain.catalogue import FAILURES

MIN_RIGHT = 95.0
MAX_WRONG = 2.0
# Two runs of the year before, each with a mark where the next begins.
OLDER = b"""2025-01-01T00:00:00Z vcluster starts vLLM
(EngineCore pid=7) ERROR 01-01 00:01:00 [core.py:1] ValueError: To serve at least one request with the model's max seq
(EngineCore pid=7) ERROR 01-01 00:01:00 [core.py:1] OSError: [Errno 98] Address already in use
2025-01-01T00:02:00Z vcluster starts vLLM
(raylet) A worker died or was killed while executing a task by an unexpected system error.
FrobnicationError: the frob is out
2025-01-02T00:00:00Z vcluster starts vLLM
"""
PARTS = sorted({case.part for case in CORPUS})


@pytest.mark.promise("P41")
@pytest.mark.parametrize("part", PARTS)
def test_at_least_95_percent_are_diagnosed_right_and_at_most_2_wrong(part: str) -> None:
    outcomes = {case.log: judged(case)[0] for case in CORPUS if case.part == part}
    seen = Counter(outcomes.values())
    missed = [log for log, outcome in outcomes.items() if outcome != "right"]
    right, wrong = (100.0 * seen[outcome] / len(outcomes) for outcome in ("right", "wrong"))
    good = right >= MIN_RIGHT and wrong <= MAX_WRONG
    record("P41", f"{len(outcomes)} logs, {part}", f"{right:.1f} % right, {wrong:.1f} % wrong", good)
    assert good, missed


def test_each_log_has_an_answer_a_source_and_no_second_entry() -> None:
    logs = [case.log for case in CORPUS]
    assert sorted(logs) == sorted(str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.glob("*/*.log"))
    for case in CORPUS:
        assert case.source, case.log
        assert bool(case.failures) == (case.kind in ("cause", "symptom")), case.log
        # A cause is a failure with a cause; what is called by two names may be either.
        assert case.kind in {*(FAILURES[slug].kind for slug in case.failures), "unknown", "healthy"}, case.log


@pytest.mark.promise("P41")
@pytest.mark.parametrize("case", [case for case in CORPUS if case.kind != "unknown"], ids=lambda case: case.log)
def test_older_failures_in_the_logs_change_no_answer(case: Case) -> None:
    """Each log after a run that failed otherwise, and after one that was killed; both ended with a new start."""
    text = (FOLDER / f"{case.log}.log").read_bytes()
    found = explained(OLDER + text)
    named, alone = found.named, judged(case)[1].named
    assert (named and named.failure.slug) == (alone and alone.failure.slug)
