"""What a change does not wait for is run by `make promises`, all of it."""

from __future__ import annotations

from tests.promises.__main__ import MADE_UP, MEASURED, REAL
from tests.support.paths import ROOT

DEEP = "pytest.mark.deep"


def test_what_is_left_for_make_promises_is_run_by_it() -> None:
    run = tuple(ROOT / path for path in (*MEASURED, *REAL, *MADE_UP))
    deep = {path for path in (ROOT / "tests").rglob("test_*.py") if DEEP in path.read_text()} - {ROOT / __file__}
    assert len(deep) > 10
    left = [path for path in deep if not any(path == one or one in path.parents for one in run)]
    assert sorted(str(path.relative_to(ROOT)) for path in left) == []
