"""What became of a command line of vLLM: a table for people, an event for programs."""

from __future__ import annotations

from dataclasses import asdict

from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.shell_line import Paste, Pasted, shell_line
from vllm_cluster.kernel.terminal.output import err, out, to_paste
from vllm_cluster.kernel.terminal.table import columns, cut, table
from vllm_cluster.kernel.text import printable, redact_words
from vllm_cluster.serving.translate.options import TranslatedWord, Translation

TITLES = {"given": 0, "here": 0, "why": 0}
# A cell with more leaves no room for the reason.
MAX_CELL = 48
_HERE = {"dropped": "dropped", "variable": "not taken"}


def show_translation(found: Translation, line: Pasted, paste: Paste, *, stdout: bool) -> None:
    """Write the table; what is handed on as it is has one line below it."""
    write = out if stdout else err
    rows = [_row(one) for one in found.rows if one.kind != "passed" or one.why]
    for text in table(TITLES, rows, columns()):
        write(text)
    if found.flags:
        write(to_paste("for vLLM: ", paste(printable(shell_line(redact_words(found.flags))))))
    write(to_paste("the same: ", line))


def translation_event(found: Translation, line: Pasted) -> Event:
    """The table as an event; `line` is the command that asks for the same."""
    text = f"translated to: {line}"
    words = [asdict(one) for one in found.rows]
    return Event("note", text, data={"code": "translated", "command": line, "words": words})


def _row(one: TranslatedWord) -> dict[str, str]:
    here = one.here or _HERE.get(one.kind, "dropped" if one.why else "off")
    return {"given": cut(one.given or "(none)", MAX_CELL), "here": cut(here, MAX_CELL), "why": one.why}
