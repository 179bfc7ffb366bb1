"""docs/failures.md says what the catalogue says."""

from __future__ import annotations

from tests.unit.explain.page import PAGE, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.unit.explain.page"
