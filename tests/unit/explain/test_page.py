"""docs/failures.md says what the catalogue says."""

from __future__ import annotations

from tests.unit.explain.page import PAGE, page
from vllm_cluster.core.reasons import REASONS
from vllm_cluster.explain.catalogue import ROWS


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.unit.explain.page"


def test_where_explain_names_check_there_is_a_finding() -> None:
    found = {str(row) for reason in REASONS.values() for row in reason.rows}
    assert [number for number, row in ROWS.items() if row.before == "vcluster check" and number not in found] == []
