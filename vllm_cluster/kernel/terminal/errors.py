"""An error, as a person reads it or as one JSON line."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from vllm_cluster.kernel.errors import Aborted, Interrupted, VclusterError
from vllm_cluster.kernel.shell_line import Paste
from vllm_cluster.kernel.terminal.output import BOLD, END, RED, Style, document, err, styles, to_paste, with_ends
from vllm_cluster.kernel.terminal.printable import plain

# After an interruption nothing is to be fixed: each line is something that can be done next.
_NEXT = {"status": "look", "stop": "stop", "serve": "follow", "rollback": "follow"}


def _label(error: VclusterError, line: str) -> str:
    if not isinstance(error, Interrupted):
        return "fix"
    return _NEXT.get(line.removeprefix("vcluster ").partition(" ")[0], "continue")


def write_error(error: VclusterError, paste: Paste, *, as_json: bool, color: str, log: Path | None = None) -> None:
    """Write the error: what happened, what to do, and the file that has every call to the hosts."""
    if as_json:
        # Where standard output cannot be written, which may be the error itself, it is for people after all.
        with suppress(OSError):
            document({"v": 1, "time": round(time.time(), 3), "event": "error", **error.as_json(paste)})
            return
    red, bold, end = styles(color, RED, BOLD, stdout=False)
    # A person's decision is not an error.
    mark = () if isinstance(error, Aborted | Interrupted) else (red, "error:", end, " ")
    first, *more = map(plain, error.lines)
    err(*mark, first, END, *with_ends(more), end="")
    for line in paste(error.hint or "").each:
        err(bold, Style(f"{_label(error, line)}:"), end, to_paste(" ", line, plain))
    if log:
        err(bold, "log:", end, to_paste(" ", paste(str(log)), plain))
