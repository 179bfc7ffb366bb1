"""`vcluster logs`."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.terminal.completion import complete_hosts
from vllm_cluster.kernel.terminal.options import InventoryPath, Json
from vllm_cluster.kernel.terminal.output import err
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.kernel.terminal.settings import SETTINGS

if TYPE_CHECKING:
    from vllm_cluster.kernel.events import Emit, Event

Hosts = Annotated[
    list[str] | None, typer.Argument(metavar="HOST", help="Hosts. Default: all.", autocompletion=complete_hosts)
]


Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="DURATION|TIME",
        help="Only what is newer: 90s, 10m, 2h, or 2026-11-25T02:53Z.",
    ),
]
MAX_SINCE = 1e9


def _complete_only(ctx: object, args: list[str], incomplete: str) -> list[str]:
    """The parts of the logs; which ranks there are is not known here."""
    return [part for part in ("ray", "vllm", "rank=", "replica=") if part.startswith(incomplete)]


Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="ray|vllm|rank=N|replica=N",
        help="Only Ray with the files of its processes, vLLM with all ranks, a rank, or a replica. Repeatable.",
        autocompletion=_complete_only,
    ),
]

Tail = Annotated[
    int | None, typer.Option("--tail", "-n", metavar="N", min=0, help="Of the existing lines, only the last N.")
]


def logs(
    hosts: Hosts = None,
    inventory: InventoryPath = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show new lines as they come, until Ctrl-C.")] = False,
    only: Only = None,
    since: Since = None,
    tail: Tail = None,
    grep: Annotated[str, typer.Option("--grep", metavar="TEXT", help="Only lines that contain TEXT.")] = "",
    errors: Annotated[bool, typer.Option("--errors", help="Only errors and tracebacks.")] = False,
    previous: Annotated[
        bool, typer.Option("--previous", help="What was printed before the last start of each node.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the logs of all hosts, merged by time."""
    if follow and previous:
        raise UsageError(
            "--previous has ended: it cannot be followed", hint="vcluster logs --previous\nvcluster logs --follow"
        )
    parts, rank, replica = _parts(only or ())
    ago = None if since is None else _seconds_ago(since)
    with Session(inventory, as_json=as_json) as session:
        loaded = session.load()
        from vllm_cluster.features.logs.action import show_logs
        from vllm_cluster.features.logs.lines import LogRequest
        from vllm_cluster.features.logs.render import LogWriter

        chosen = tuple(dict.fromkeys(hosts)) if hosts else tuple(loaded.hosts)
        # Who searches, and a program, gets all lines; others none about vcluster's own polls of the API.
        every = bool(grep) or session.as_json
        asked = LogRequest(chosen, rank, "ray" in parts, "vllm" in parts, ago, grep, previous, follow, every, replica)
        writer = LogWriter(tuple(loaded.hosts), as_json=session.as_json, color=SETTINGS.color)
        found = show_logs(loaded, asked, _notices(session), writer.write, errors=errors, last=tail)
        if not (found or session.as_json or tail == 0 or SETTINGS.verbosity < 0):
            err("No line of the logs matches." if errors or grep else "No lines.")


def _parts(words: Sequence[str]) -> tuple[set[str], int | None, int | None]:
    """The parts of the logs that are asked for, and of vLLM's the rank and the replica.

    Raises:
        UsageError: a word is none of them, or a part of vLLM's log comes beside whole ones.
    """
    parts, numbers = set[str](), dict[str, int]()
    for word in words:
        found = re.fullmatch("(ray|vllm)|(rank|replica)=([0-9]{1,9})", word)
        if not found:
            text = f"--only must be ray, vllm, rank=N or replica=N, got {word!r}"
            raise UsageError(text, hint="vcluster logs --only rank=3")
        if found[1]:
            parts.add(word)
        else:
            numbers[found[2]] = int(found[3])
    if parts and numbers:
        one = next(f"{name}={number}" for name, number in numbers.items())
        hint = command_line("vcluster", "logs", Option("--only"), one)
        raise UsageError(f"{one} is a part of vLLM's log: use it without {' and '.join(sorted(parts))}", hint=hint)
    return parts, numbers.get("rank"), numbers.get("replica")


def _seconds_ago(since: str) -> float:
    """How long ago a duration or a moment began; a time without a zone is this machine's.

    Raises:
        UsageError: it is neither, or not within reach.
    """
    from vllm_cluster.kernel.terminal.values import seconds

    found = -1.0
    try:
        found = seconds(since)
    except typer.BadParameter:
        # Also with a space and the letters UTC, as the history prints it.
        with suppress(ValueError, OverflowError, OSError):
            at = datetime.fromisoformat(since.strip().replace(" UTC", "+00:00"))
            found = max(0.0, time.time() - at.astimezone().timestamp())
    if not 0 <= found <= MAX_SINCE:
        text = f"--since must be a duration such as 90s or 10m, or a time such as 2026-11-25T02:53, got {since!r}"
        raise UsageError(text, hint="vcluster logs --since 10m")
    return found


def _notices(session: Session) -> Emit:
    """Events on standard error, beside the lines: a live picture would be drawn over them."""

    def show(event: Event) -> None:
        if session.as_json:
            session.emit(event)
        elif event.kind == "warning" or SETTINGS.verbosity >= 0:
            from vllm_cluster.kernel.terminal.printable import plain

            event = session.advising(event)
            at = f"{event.host}: " if event.host else ""
            err(f"{'warning: ' * (event.kind == 'warning')}{at}{plain(event.text)}")

    return show
