"""Which lines `logs --errors` keeps."""

from __future__ import annotations

import pytest

from tests.support.paths import FIXTURES
from vllm_cluster.kernel.explain.error_lines import MAX_INSIDE, ErrorLines


def test_a_traceback_is_kept_to_its_end_beside_lines_of_another_log() -> None:
    is_error = ErrorLines()
    rows = [
        ("a", "INFO 11-22 13:40:23 [a.py:1] calm", False),
        ("a", "Traceback (most recent call last):", True),
        ("b", "  calm as well", False),
        ("a", '  File "x.py", line 1, in <module>', True),
        ("a", "ValueError: no", True),
        ("a", "calm again", False),
        ("b", "(EngineCore pid=7) ERROR 11-22 13:40:23 [core.py:1] bad", True),
        ("b", "[2026-11-22 13:40:23,553 E 12 12] (raylet) gone", True),
        ("b", "2026-11-22 13:39:11,390\tSUCC scripts.py:1081 -- Ray runtime started.", False),
    ]
    assert [(log, text, is_error(log, text)) for log, text, _ in rows] == rows


@pytest.mark.parametrize("name", ["healthy-two-hosts"])
def test_a_healthy_log_has_no_errors(name: str) -> None:
    is_error = ErrorLines()
    lines = (FIXTURES / "logs" / f"{name}.log").read_text().splitlines()
    assert [line for line in lines if is_error("log", line)] == []


# fault: kernel/explain/error_lines.py: if len(self._inside) >= MAX_INSIDE: → if False:
def test_logs_in_a_traceback_are_not_remembered_without_end() -> None:
    is_error = ErrorLines()
    for rank in range(2 * MAX_INSIDE):
        assert is_error(rank, "Traceback (most recent call last):")
    assert len(is_error._inside) == MAX_INSIDE
    assert is_error(2 * MAX_INSIDE - 1, "  of the last one")
