"""Every finding has its reason, every reason its finding."""

from __future__ import annotations

import re
from pathlib import Path

import vllm_cluster
from vllm_cluster.checks.codes import CODES, PREVENTED_BY_DESIGN
from vllm_cluster.explain.catalogue import FAILURES

PACKAGE = Path(vllm_cluster.__file__).parent


def test_each_code_that_is_raised_has_a_reason_and_the_other_way_round() -> None:
    text = "".join(path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "reasons.py")
    assert set(re.findall(r'Finding\(\s*"([a-z-]+)"', text)) - set(CODES) == set()
    assert [code for code in CODES if f'"{code}"' not in text] == []


def test_no_row_is_both_checked_and_held_otherwise() -> None:
    """But 21, 22 and 43, of which a check finds one half."""
    checked = {row for reason in CODES.values() for row in reason.rows}
    assert checked & set(PREVENTED_BY_DESIGN) == {21, 22, 43}


def test_every_row_that_can_be_known_beforehand_is_accounted_for() -> None:
    """Rows of stage P of the catalogue, but for what the model and the plan decide (44 to 49, 71)."""
    beforehand = {*range(1, 38), 43, 53, 58, 60, 61, 62, 64, 65, 66, 67, 68, 69, 70, 73}
    accounted = {row for reason in CODES.values() for row in reason.rows} | set(PREVENTED_BY_DESIGN)
    assert beforehand - accounted == set()


def test_where_explain_names_check_there_is_a_finding() -> None:
    found = {str(row) for reason in CODES.values() for row in reason.rows}
    assert [number for number, row in FAILURES.items() if row.before == "vcluster check" and number not in found] == []
