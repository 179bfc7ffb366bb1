"""`vcluster logs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.shell_line import command_line
from vllm_cluster.kernel.terminal.completion import complete_hosts
from vllm_cluster.kernel.terminal.options import InventoryPath, Json
from vllm_cluster.kernel.terminal.output import err
from vllm_cluster.kernel.terminal.session import SETTINGS, Session

if TYPE_CHECKING:
    from vllm_cluster.kernel.events import Emit, Event

Hosts = Annotated[
    list[str] | None, typer.Argument(metavar="HOST", help="Hosts. Default: all.", autocompletion=complete_hosts)
]


Since = Annotated[
    float | None, typer.Option("--since", metavar="DURATION", min=0, max=1e9, help="Only what is newer: 90s, 10m, 2h.")
]

Tail = Annotated[
    int | None, typer.Option("--tail", "-n", metavar="N", min=0, help="Of the existing lines, only the last N.")
]


def logs(
    hosts: Hosts = None,
    inventory: InventoryPath = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show new lines as they come, until Ctrl-C.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", metavar="N", min=0, help="Only this rank.")] = None,
    group: Annotated[bool, typer.Option("--ray", help="Only Ray, with the files of its own processes.")] = False,
    vllm: Annotated[bool, typer.Option("--vllm", help="Only vLLM: its server, and all ranks.")] = False,
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
    if rank is not None and (group or vllm):
        raise UsageError(
            "--rank is a part of vLLM's log: use it without --ray and --vllm",
            hint=command_line("vcluster", "logs", "--rank", str(rank)),
        )

    with Session(inventory, as_json=as_json) as session:
        loaded = session.load()
        from vllm_cluster.features.logs.action import logs as logs_action
        from vllm_cluster.features.logs.lines import LogRequest
        from vllm_cluster.features.logs.render import LogWriter

        chosen = tuple(dict.fromkeys(hosts)) if hosts else tuple(loaded.hosts)
        # Who searches, and a program, gets all lines; others none about vcluster's own polls of the API.
        every = bool(grep) or session.as_json
        asked = LogRequest(chosen, rank, group, vllm, since, grep, previous, follow, every)
        writer = LogWriter(tuple(loaded.hosts), as_json=session.as_json, color=SETTINGS.color)
        found = logs_action(loaded, asked, _notices(session), writer.write, errors=errors, last=tail)
        if not (found or session.as_json or tail == 0 or SETTINGS.verbosity < 0):
            err("No line of the logs matches." if errors or grep else "No lines.")


def _notices(session: Session) -> Emit:
    """Events on standard error, beside the lines: a live picture would be drawn over them."""

    def show(event: Event) -> None:
        if session.as_json:
            session.emit(event)
        elif event.kind == "warning" or SETTINGS.verbosity >= 0:
            from vllm_cluster.kernel.terminal.text import plain

            at = f"{event.host}: " if event.host else ""
            err(f"{'warning: ' * (event.kind == 'warning')}{at}{plain(event.text)}")

    return show
