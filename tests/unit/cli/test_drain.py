"""`--drain` is a duration from nothing to an hour, as the head's program takes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.in_process import run
from vllm_cluster.serving.serve.verb import MAX_DRAIN
from vllm_cluster.wire.order import MAX_DRAIN_SECONDS, Order, read_order
from vllm_cluster.wire.reading import RefusedDocument


@pytest.mark.parametrize("verb", ["serve org/model", "stop"])
@pytest.mark.parametrize("given", ["2h", "-1", "soon"])
def test_another_time_is_refused(verb: str, given: str, tmp_path: Path) -> None:
    done = run(*verb.split(), f"--drain={given}", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --drain must be a duration"), done.stderr


def test_what_the_verb_takes_the_order_takes() -> None:
    assert MAX_DRAIN == MAX_DRAIN_SECONDS
    for seconds in (0.0, 30.0, MAX_DRAIN_SECONDS):
        assert read_order(Order(1, "me", drain=seconds).document).drain == seconds
    for seconds in (-1.0, MAX_DRAIN_SECONDS + 1):
        with pytest.raises(RefusedDocument):
            read_order(Order(1, "me", drain=seconds).document)
    assert b"drain" not in Order(1, "me").document
