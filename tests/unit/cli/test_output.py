"""What writes to the terminal: text from elsewhere is text there, and a style is one of our own."""

from __future__ import annotations

import io
import json
import sys

import pytest
from rich.console import Console

from vllm_cluster.kernel.terminal import output

HOSTILE = "a\x1b]52;c;eA==\x07b\x1b[31mc\u202ed\u200be\u2028f\U000e0041g\x9bh\x00"
SHOWN = "abcdefgh"


# fault: kernel/terminal/output.py: else as_called(unlabelled(clean(part))) → else as_called(unlabelled(part))
@pytest.mark.promise("P23")
@pytest.mark.parametrize("stream", ["out", "err"])
def test_text_is_only_text(stream: str, capsys: pytest.CaptureFixture[str]) -> None:
    getattr(output, stream)(HOSTILE, output.BOLD, HOSTILE, output.PLAIN)
    assert getattr(capsys.readouterr(), stream) == f"{SHOWN}\x1b[1m{SHOWN}\x1b[0m\n"


def test_a_style_in_a_text_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    output.out(f"{output.RED}x")
    assert capsys.readouterr().out == "x\n"


@pytest.mark.parametrize(("terminal", "shown"), [(True, SHOWN), (False, HOSTILE)])
def test_an_answer_is_whole_in_a_file_and_text_on_a_terminal(
    terminal: bool, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Out(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    written = Out()
    monkeypatch.setattr(sys, "stdout", written)
    output.data(HOSTILE)
    assert written.getvalue() == shown


def test_a_document_keeps_its_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    output.document({"name": HOSTILE})
    shown = capsys.readouterr().out
    assert shown.isascii() and "\x1b" not in shown
    assert json.loads(shown) == {"name": HOSTILE}


# fault: kernel/terminal/output.py: (_safe(part[0]), part[1]) if isinstance(part, tuple) → part if isinstance(part, tuple)
def test_a_picture_is_of_text_alone() -> None:
    drawn = io.StringIO()
    Console(file=drawn, width=200).print(output.styled(HOSTILE, (HOSTILE, "bold"), no_wrap=True))
    assert drawn.getvalue() == f"{SHOWN}{SHOWN}\n"
