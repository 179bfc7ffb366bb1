"""What the head's program reads of the members, and of a run of `up` that makes their nodes again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from vllm_cluster.serving.node.members import RUN_SECONDS, HeadMembers
from vllm_cluster.wire.parts import REPLACING, Replacing


# fault: serving/node/members.py: if time.time() - path.stat().st_ctime > RUN_SECONDS: → if False:
@pytest.mark.parametrize(("age", "counts"), [(RUN_SECONDS - 60, False), (RUN_SECONDS + 60, True)])
def test_what_fails_long_after_a_run_broke_off_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: float, counts: bool
) -> None:
    """The note of the run stays: the first failure of the weeks that follow was shown as its work, without a cause."""
    (tmp_path / REPLACING).write_bytes(Replacing("a" * 16, "ann@laptop", ("10.0.0.2",)).document)
    began = time.time()
    monkeypatch.setattr(time, "time", lambda: began + age)
    known = HeadMembers(tmp_path)
    assert known.replaced_by(["10.0.0.3"]) == ""
    assert (known.replaced_by(["10.0.0.2"]) == "") == counts
