"""`vcluster status`, and `vcluster top`, which is `vcluster status --watch`."""

from __future__ import annotations

from typing import Annotated

import typer

from vllm_cluster.cli.completion import remember_model
from vllm_cluster.cli.options import InventoryPath, Json
from vllm_cluster.cli.session import SETTINGS, Session
from vllm_cluster.errors import UsageError

EXIT_NOT_READY = 1
EXIT_UNREACHABLE = 4
INTERVAL_SECONDS = 2.0

Interval = Annotated[
    float, typer.Option("--interval", metavar="DURATION", min=0.5, max=3600, help="Time between two views.")
]
Number = Annotated[int | None, typer.Option("--count", metavar="N", min=1, help="End after N views.")]


def status(
    inventory: InventoryPath = None,
    as_json: Json = False,
    group: Annotated[bool, typer.Option("--ray", help="Print what ray status prints on the head.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh the view, with loads, until Ctrl-C.")] = False,
    interval: Interval = INTERVAL_SECONDS,
    count: Number = None,
) -> None:
    """Show hosts, GPUs and the served model."""
    if watch and group:
        raise UsageError("--ray and --watch exclude each other", hint="vcluster status --watch\nvcluster status --ray")
    if as_json and group:
        raise UsageError("--ray and --json exclude each other", hint="vcluster status --json\nvcluster status --ray")
    if not watch and (count is not None or interval != INTERVAL_SECONDS):
        raise UsageError("--interval and --count need --watch", again=("--watch",))
    if watch:
        top(inventory, as_json, interval, count)
        return

    with Session(inventory, as_json=as_json) as session:
        loaded = session.load()
        from vllm_cluster.actions import status as status_action
        from vllm_cluster.cli.render.status import show_status, status_document
        from vllm_cluster.cli.render.text import plain

        if group:
            print(plain(status_action.group_status(loaded)))
            return
        found = status_action.status(loaded, session.progress)
        session.show(
            lambda: status_document(found, session.paste),
            lambda: show_status(found, color=SETTINGS.color, verbosity=SETTINGS.verbosity, paste=session.paste),
        )
        # One that was asked for and never came up may be a misspelt name.
        if found.head and found.head.serve and found.head.serve.phase == "ready":
            remember_model(loaded.path, found.head.serve.model)
        raise SystemExit(EXIT_UNREACHABLE if found.unreachable else 0 if found.ready else EXIT_NOT_READY)


def top(
    inventory: InventoryPath = None,
    as_json: Json = False,
    interval: Interval = INTERVAL_SECONDS,
    count: Number = None,
) -> None:
    """Show hosts, GPUs and tokens as they change."""
    with Session(inventory, as_json=as_json) as session:
        loaded = session.load()
        from vllm_cluster.actions.watch import watch
        from vllm_cluster.cli.render.watch import writer

        with writer(as_json=session.as_json, color=SETTINGS.color, paste=session.paste) as shown:
            watch(loaded, interval, shown.show, number=count)
