"""What installs vcluster is never silent for long."""

from __future__ import annotations

import os
import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

run = runpy.run_path(str(ROOT / "scripts/patiently.py"))["run"]


@pytest.mark.parametrize(
    ("usual", "line"), [(9e4, r"  \d+ s, about \d{5} s left"), (0, r"  \d+ s, longer than .* 0 s")]
)
def test_a_silent_command_has_a_line_now_and_then(usual: float, line: str, tmp_path: Path) -> None:
    """The command ends when the second line is there."""
    pipe, lines = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)

    def write(text: str) -> None:
        lines.append(text)
        if len(lines) == 2:
            pipe.write_text("3\n")

    assert run(["sh", "-c", f'read code < "{pipe}"; exit "$code"'], usual, write, every=0.05) == 3
    assert [text for text in lines if not re.fullmatch(line, text)] == []


def test_a_quick_command_has_none() -> None:
    lines = list[str]()
    assert run([sys.executable, "-c", ""], 60, lines.append) == 0
    assert lines == []
