"""The history of a cluster: who did what and when, appended on the head."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from vllm_cluster import __version__
from vllm_cluster.core.desired import STATE_FOLDER
from vllm_cluster.core.errors import HostError
from vllm_cluster.laptop import whoami
from vllm_cluster.run.events import Emit, Event
from vllm_cluster.run.fleet import Link
from vllm_cluster.text import count

AUDIT_FILE = f"{STATE_FOLDER}/audit.jsonl"


def record(head: Link, cluster: str, verb: str, what: Sequence[str], emit: Emit, *, request: int = 0) -> None:
    """Append one line, that of `serve` and `stop` with the number of the request.

    Secrets never get here, since operations do not hold their values.
    A head that runs no command at this moment only costs the line: what it is about has been done already.
    """
    line = json.dumps(
        {
            "at": round(head.runtime.clock.time(), 3),
            "who": whoami(),
            "version": __version__,
            "run": head.runtime.run,
            "verb": verb,
            "what": list(what),
            **({"request": request} if request else {}),
        }
    )
    script = 'printf "%s\\n" "$1" >>"$2"'
    argv = ["timeout", "10", "sh", "-c", script, "audit", line, AUDIT_FILE]
    try:
        head.engine.exec(f"vcluster-{cluster}", argv, head.runtime.after(15), changes=True)
    except HostError as error:
        emit(Event("warning", f"the history of {cluster} has no line for this {verb}: {error.detail}", head.name))


@dataclass(frozen=True)
class Change:
    """One line of the history: who ran what; `time` by the clock of their laptop."""

    who: str
    verb: str
    what: str
    time: float
    run: str


def last_change(head: Link, cluster: str) -> Change | None:
    """The last line of the history; None where there is none that can be read."""
    raw = head.engine.read_file(f"vcluster-{cluster}", AUDIT_FILE) or b""
    try:
        last = json.loads(raw.splitlines()[-1])
        time = float(last["at"])
        datetime.fromtimestamp(time)
        done = [str(text) for text in last["what"]]
        what = done[0] if len(done) == 1 else f"{last['verb']} ({count(len(done), 'change')})"
        return Change(str(last["who"]), str(last["verb"]), what, time, str(last.get("run", "")))
    except (ValueError, LookupError, TypeError, AttributeError, OSError, OverflowError):
        return None


def last_other(head: Link, cluster: str) -> str:
    """Who ran what and when, by the last line of the history; empty where that line is this run's own."""
    last = last_change(head, cluster)
    if last is None or last.run == head.runtime.run:
        return ""
    at = datetime.fromtimestamp(last.time).astimezone().isoformat(timespec="seconds")
    return f"{last.who} ran {last.what} at {at}"
