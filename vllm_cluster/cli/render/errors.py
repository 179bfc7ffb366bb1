"""An error, as a person reads it or as one JSON line."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from pathlib import Path

from vllm_cluster.cli.render.text import plain, wants_color
from vllm_cluster.errors import Aborted, Interrupted, VclusterError

# After an interruption nothing is to be fixed: each line is something that can be done next.
_NEXT = {"status": "status", "stop": "stop", "serve": "follow", "rollback": "follow"}


def _label(error: VclusterError, line: str) -> str:
    if not isinstance(error, Interrupted):
        return "fix"
    return _NEXT.get(line.removeprefix("vcluster ").partition(" ")[0], "continue")


def show(error: VclusterError, *, as_json: bool, color: str, log: Path | None = None) -> None:
    """Write the error: what happened, what to do, and the file that has every call to the hosts."""
    if as_json:
        # Where standard output cannot be written, which may be the error itself, it is for people after all.
        with suppress(OSError):
            print(json.dumps({"v": 1, "time": round(time.time(), 3), "event": "error", **error.as_json()}), flush=True)
            return
    red, bold, end = ("\x1b[31m", "\x1b[1m", "\x1b[0m") if wants_color(color, stdout=False) else ("", "", "")
    # A person's decision is not an error.
    mark = "" if isinstance(error, Aborted | Interrupted) else f"{red}error:{end} "
    print(f"{mark}{plain(error.message)}", file=sys.stderr)
    for line in (error.hint or "").splitlines():
        print(f"{bold}{_label(error, line)}:{end} {plain(line)}", file=sys.stderr)
    if log:
        print(f"{bold}log:{end} {plain(str(log))}", file=sys.stderr)
