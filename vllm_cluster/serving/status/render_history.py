"""The history of a cluster, a line an entry for people and as a document for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from textwrap import shorten, wrap
from typing import Any

from vllm_cluster.kernel.plan.history import Entry
from vllm_cluster.kernel.terminal.output import YELLOW, out, styles
from vllm_cluster.kernel.terminal.table import columns
from vllm_cluster.kernel.terminal.text import plain

_MAX_ERROR, MIN_WIDTH = 160, 20


def history_document(cluster: str, entries: Sequence[Entry]) -> dict[str, Any]:
    """The history as JSON would have it."""
    return {"v": 1, "cluster": cluster, "entries": [asdict(entry) for entry in entries]}


def show_history(cluster: str, entries: Sequence[Entry], *, color: str) -> None:
    """Write the history on standard output, the newest entry last."""
    yellow, end = styles(color, YELLOW)
    if not entries:
        out(f"No history of {cluster}.")
    for entry in entries:
        line = "  ".join(filter(None, (when(entry.time), entry.user, _what(entry), _result(entry))))
        for row in _wrapped(plain(line)):
            out(*((yellow, row, end) if entry.failure else (row,)))


def _wrapped(line: str) -> list[str]:
    """The line as a terminal has room for it; whole where the output goes elsewhere."""
    width = columns()
    if width is None or len(line) <= width:
        return [line]
    return wrap(line, max(MIN_WIDTH, width), subsequent_indent="    ", break_on_hyphens=False)


def when(at: float, shape: str = "%Y-%m-%d %H:%M:%S %Z") -> str:
    """A time that a host wrote, as people read it; `?` where no clock has it."""
    try:
        return datetime.fromtimestamp(at).astimezone().strftime(shape)
    except (ValueError, OSError, OverflowError):
        return "?"


def _what(entry: Entry) -> str:
    text = "; ".join(entry.operations)
    return text if text.startswith(entry.verb) else f"{entry.verb}: {text}" if text else entry.verb


def _result(entry: Entry) -> str:
    seconds = "" if entry.seconds is None else f" after {entry.seconds:.0f} s"
    if entry.verb == "restart":
        again = f"; ready again{seconds}" if entry.result == "ready" else ""
        return f"{_why(entry)}{again}"
    failed = f"failed: {_why(entry)}"
    done = f"done{seconds}" if seconds else ""
    return {
        "ready": f"ready{seconds}",
        "failed": failed,
        "back": f"{failed}; the previous model is served again{seconds}",
        "not back": f"{failed}; the previous model did not become ready",
        "replaced": "superseded by a new request",
    }.get(entry.result or "", entry.result or done)


def _why(entry: Entry) -> str:
    return shorten(entry.failure or "", _MAX_ERROR, placeholder=" …")
