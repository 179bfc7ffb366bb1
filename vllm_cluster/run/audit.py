"""The history of a cluster: who did what and when, appended on the head."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from vllm_cluster import __version__
from vllm_cluster.core.desired import STATE_FOLDER
from vllm_cluster.errors import HostError
from vllm_cluster.events import Emit, Event
from vllm_cluster.laptop import whoami
from vllm_cluster.run.node_handle import NodeHandle
from vllm_cluster.run.program import python
from vllm_cluster.text import count

AUDIT_FILE = "audit.jsonl"
APPEND_SECONDS = 10.0


def record(
    node: NodeHandle,
    verb: str,
    operations: Sequence[str],
    emit: Emit,
    *,
    request: int = 0,
    seconds: float | None = None,
) -> None:
    """Append one line, that of `serve` and `stop` with the number of the request, that of `up` with its `seconds`.

    Secrets never get here, since operations do not hold their values.
    A head that runs no command at this moment only costs the line: what it is about has been done already.
    """
    line = json.dumps(
        {
            "time": round(node.connection.runtime.clock.time(), 3),
            "user": whoami(),
            "version": __version__,
            "run": node.connection.runtime.run,
            "verb": verb,
            "operations": list(operations),
            **({"request": request} if request else {}),
            **({} if seconds is None else {"seconds": round(seconds, 1)}),
        }
    )
    program = replace(python("image", "append_line", seconds=APPEND_SECONDS), changes=True)
    try:
        ended = node.run(program, APPEND_SECONDS + 5, {"path": f"{STATE_FOLDER}/{AUDIT_FILE}", "line": line})
        problem = "" if ended.messages else ended.text.rpartition("\n")[2] or f"exit code {ended.code}"
    except HostError as error:
        problem = error.detail
    if problem:
        emit(Event("warning", f"the history of {node.cluster} has no line for this {verb}: {problem}", node.host))


@dataclass(frozen=True)
class AuditEntry:
    """One line of the history: who ran what; `time` by the clock of their laptop."""

    user: str
    verb: str
    summary: str
    time: float
    run: str


def last_change(node: NodeHandle) -> AuditEntry | None:
    """The last line of the history; None where there is none that can be read."""
    raw = node.read(AUDIT_FILE) or b""
    try:
        last = json.loads(raw.splitlines()[-1])
        time = float(last["time"])
        datetime.fromtimestamp(time)
        done = [str(text) for text in last["operations"]]
        verb, first = str(last["verb"]), done[0] if len(done) == 1 else count(len(done), "change")
        what = first if first.startswith(verb) else f"{verb} ({first})"
        return AuditEntry(str(last["user"]), str(last["verb"]), what, time, str(last.get("run", "")))
    except (ValueError, LookupError, TypeError, AttributeError, OSError, OverflowError):
        return None


def last_other(node: NodeHandle) -> str:
    """Who ran what and when, by the last line of the history; empty where that line is this run's own."""
    last = last_change(node)
    if last is None or last.run == node.connection.runtime.run:
        return ""
    at = datetime.fromtimestamp(last.time).astimezone().isoformat(timespec="seconds")
    return f"{last.user} ran {last.summary} at {at}"
