"""Every finding has its reason, every reason its finding."""

from __future__ import annotations

import re

import pytest

from tests.support.modules import MODULES
from vllm_cluster.kernel.checks.codes import CODES
from vllm_cluster.kernel.explain.catalogue import CHECKED, FAILURES


@pytest.mark.spans
def test_each_code_that_is_raised_has_a_reason_and_the_other_way_round() -> None:
    text = "".join(path.read_text() for path in MODULES if path.name != "codes.py")
    assert set(re.findall(r'Finding\(\s*"([a-z-]+)"', text)) - set(CODES) == set()
    assert [code for code in CODES if f'"{code}"' not in text] == []


def test_each_code_that_a_failure_names_exists() -> None:
    assert set(CHECKED) - set(CODES) == set()


def test_no_failure_is_both_checked_and_prevented() -> None:
    """But three, of which a check finds one half."""
    both = {failure.slug for failure in FAILURES.values() if failure.checks and failure.prevented}
    assert both == {"interface-missing", "environment-copied", "dashboard-open"}


def test_every_failure_that_can_be_known_beforehand_is_accounted_for() -> None:
    """Those of hosts, networks and models; what the model and the plan decide, `fit` and `serve` find.

    What `explain` sees of a cluster at that moment is not before anything.
    """
    others = {"placement-impossible", "gpus-fewer-in-ray", "ray-versions-differ", "dashboard-open"}
    others |= {"gpu-memory-full", "io-uring-forbidden", "gpu-memory-held-by-others"}
    beforehand = [one for one in FAILURES.values() if one.subject in ("host", "network", "model") or one.slug in others]
    of_now = {"node-stopped", "cluster-not-up"}
    missing = [one.slug for one in beforehand if one.slug not in of_now and not (one.checks or one.prevented)]
    assert missing == [], "name its `checks`, or what has `prevented` it"


def test_where_explain_names_check_there_is_a_finding() -> None:
    assert [one.slug for one in FAILURES.values() if one.found_by == "vcluster check" and not one.checks] == []
