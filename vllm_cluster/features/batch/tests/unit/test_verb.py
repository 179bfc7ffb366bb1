"""What a call of `vcluster batch` shows at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from vllm_cluster.features.batch import verb
from vllm_cluster.features.batch.on_head.files import BatchFiles, BatchResult


# fault: features/batch/verb.py: if result.seconds and not before else "" → if result.seconds else ""
@pytest.mark.parametrize(
    ("now", "text"), [(6, "Answered 6 requests, 90 tokens at 9/s"), (2, "2 requests, 4 of 6 before, 90 tokens,")]
)
def test_a_call_that_continues_shows_no_rate_of_what_was_there_before(now: int, text: str) -> None:
    """All tokens of 6,000 answers were divided by the seconds in which a third of them came."""
    session = Mock()
    files = BatchFiles(Path("in.jsonl"), Path("out.jsonl"))
    verb._show(cast(Any, session), BatchResult(6, 6, now, 0, 30, 60, 10.0), files)
    (event,) = (call.args[0] for call in session.emit.call_args_list)
    assert text in event.text
