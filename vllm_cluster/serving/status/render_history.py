"""The history of a cluster, a row an entry for people and as a document for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from textwrap import shorten, wrap

from vllm_cluster.kernel.plan.history import Entry
from vllm_cluster.kernel.terminal.output import BOLD, MARK, YELLOW, out, styles
from vllm_cluster.kernel.terminal.printable import plain
from vllm_cluster.kernel.terminal.table import GAP, columns, table
from vllm_cluster.kernel.text import when

_MAX_ERROR, MIN_WIDTH = 160, 20
# What is left out first where the terminal is narrow.
TITLES = {"#": 0, "when": 1, "user": 2, "result": 0, "what": 0}


def history_document(cluster: str, entries: Sequence[Entry]) -> dict[str, object]:
    """The history as JSON would have it."""
    return {"v": 1, "cluster": cluster, "entries": [asdict(entry) for entry in entries]}


def show_history(cluster: str, entries: Sequence[Entry], *, color: str) -> None:
    """Write the history on standard output, the newest entry last; `rollback` takes the number of a request."""
    yellow, bold, end = styles(color, YELLOW, BOLD)
    if not entries:
        out(f"No history of {cluster}.")
        return
    rows, width = [_row(entry) for entry in entries], columns()
    # The last column is as long as a command, and continues below itself.
    kept = [title for title in TITLES if any(row[title] for row in rows)]
    while width and _indent(rows, kept) > max(MIN_WIDTH, width) // 2 and any(TITLES[title] for title in kept):
        kept.remove(max(kept, key=lambda title: TITLES[title]))
    first, *lines = table(dict.fromkeys(kept, 0), rows, None)
    out(bold, first, end)
    for entry, line in zip(entries, lines, strict=True):
        for part in _wrapped(line, _indent(rows, kept), width):
            out(*((yellow, part, end) if entry.failure else (part,)))


def _row(entry: Entry) -> dict[str, str]:
    asked = entry.request if entry.verb in ("serve", "rollback") else None
    cells = {
        "#": str(asked or ""),
        "when": when(entry.time),
        "user": entry.user,
        "result": _result(entry),
        "what": ": ".join(filter(None, (_what(entry), _why(entry)))),
    }
    return {title: plain(cell).replace("\n", " ") for title, cell in cells.items()}


def _indent(rows: Sequence[Mapping[str, str]], kept: Sequence[str]) -> int:
    """Where the last column begins."""
    return sum(max(len(title), *(len(row[title]) for row in rows)) + GAP for title in kept[:-1])


def _wrapped(line: str, indent: int, width: int | None) -> list[str]:
    """The line as a terminal has room for it; whole where the output goes elsewhere."""
    if width is None or len(line) <= width:
        return [line]
    if width - indent < MIN_WIDTH:
        return wrap(line, width, subsequent_indent=MARK, break_on_hyphens=False)
    first, *more = wrap(line[indent:], width - indent, break_on_hyphens=False)
    return [line[:indent] + first, *(MARK.ljust(indent) + part for part in more)]


def _what(entry: Entry) -> str:
    text = "; ".join(entry.operations)
    return text if text.startswith(entry.verb) else f"{entry.verb}: {text}" if text else entry.verb


def _result(entry: Entry) -> str:
    """What became of it, in two words or three."""
    seconds = "" if entry.seconds is None else f" after {entry.seconds:.0f} s"
    if entry.verb == "restart":
        return f"ready again{seconds}" if entry.result == "ready" else entry.result or "restarted"
    return {
        "ready": f"ready{seconds}",
        "back": "rolled back",
        "not back": "failed twice",
        "replaced": "superseded",
    }.get(entry.result or "", entry.result or (f"done{seconds}" if seconds else "done"))


def _why(entry: Entry) -> str:
    why = shorten(entry.failure or "", _MAX_ERROR, placeholder=" …")
    seconds = "" if entry.seconds is None else f" after {entry.seconds:.0f} s"
    return {
        "back": f"{why}; the previous model is served again{seconds}",
        "not back": f"{why}; the previous model did not become ready",
    }.get(entry.result or "", why)
