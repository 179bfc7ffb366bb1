"""The corpus: how many logs are named right, and how many wrong."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.corpus import CORPUS, FOLDER, judged
from vllm_cluster.explain.catalogue import ROWS

MIN_RIGHT = 95.0
MAX_WRONG = 2.0
PARTS = sorted({case.part for case in CORPUS})


@pytest.mark.promise("P41")
@pytest.mark.parametrize("part", PARTS)
def test_at_least_95_percent_are_named_right_and_at_most_2_wrong(part: str) -> None:
    outcomes = {case.log: judged(case)[0] for case in CORPUS if case.part == part}
    seen = Counter(outcomes.values())
    missed = [log for log, outcome in outcomes.items() if outcome != "right"]
    assert 100.0 * seen["right"] / len(outcomes) >= MIN_RIGHT, missed
    assert 100.0 * seen["wrong"] / len(outcomes) <= MAX_WRONG, missed


def test_each_log_has_an_answer_a_source_and_no_second_entry() -> None:
    logs = [case.log for case in CORPUS]
    assert sorted(logs) == sorted(str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.glob("*/*.log"))
    for case in CORPUS:
        assert case.source, case.log
        assert bool(case.rows) == (case.kind in ("cause", "symptom")), case.log
        # A cause is a row of a cause; what is called by two names may be either.
        assert case.kind in {*(ROWS[row].kind for row in case.rows), "unknown", "healthy"}, case.log
