"""`vcluster status`: now, as it changes, until it is ready, and what was done."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.shell_line import command_line, typed_words
from vllm_cluster.kernel.terminal.completion import remember_model, remember_served
from vllm_cluster.kernel.terminal.options import InventoryPath, Json
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.kernel.terminal.settings import SETTINGS

EXIT_NOT_READY = 1
EXIT_UNREACHABLE = 4

Watch = Annotated[
    float | None,
    typer.Option(
        *("--watch", "-w"),
        metavar="DURATION",
        min=0.5,
        max=3600,
        help="Refresh the view, with loads, until Ctrl-C. Without DURATION: every 2s.",
    ),
]
Number = Annotated[int | None, typer.Option("--count", metavar="N", min=1, help="With --watch: end after N views.")]
Wait = Annotated[
    float | None,
    typer.Option(
        "--wait", metavar="DURATION", min=0, max=1e9, help="Wait until the model is ready. Without DURATION: 10m."
    ),
]
History = Annotated[
    int | None,
    typer.Option(
        "--history",
        metavar="N",
        min=1,
        help="Show what was done, when, by whom, with the result. Without N: the last 20 entries.",
    ),
]


def status(
    inventory: InventoryPath = None,
    as_json: Json = False,
    watch: Watch = None,
    count: Number = None,
    wait: Wait = None,
    history: History = None,
) -> None:
    """Show hosts, GPUs and the served model."""
    modes = {"--watch": watch, "--wait": wait, "--history": history}
    given = [name for name, value in modes.items() if value is not None]
    if len(given) > 1:
        lines = "\n".join(command_line("vcluster", "status", *typed_words([name])) for name in given)
        raise UsageError(f"{' and '.join(given)} exclude each other", hint=lines)
    if count and watch is None:
        raise UsageError("--count needs --watch", again=("--watch",))
    if watch is not None:
        _watch(inventory, watch, count, as_json=as_json)
    elif wait is not None:
        _wait(inventory, wait, as_json=as_json)
    elif history is not None:
        _show_history(inventory, history, as_json=as_json)
    else:
        _show(inventory, as_json=as_json)


def _show(inventory: Path | None, *, as_json: bool) -> None:
    with Session(inventory, as_json=as_json) as session:
        loaded = session.load()
        from vllm_cluster.serving.status import status as status_action
        from vllm_cluster.serving.status.render import show_status, status_document

        found = status_action.look_at_cluster(loaded, session.progress)
        session.show(
            lambda: status_document(found, session.paste),
            lambda: show_status(found, session.paste, color=SETTINGS.color, verbosity=SETTINGS.verbosity),
        )
        rows = found.head.serves if found.head else ()
        if found.served is not None:
            remember_served(loaded.path, {one.name: one.model for one in rows})
        # One that was asked for and never came up may be a misspelt name.
        for one in reversed(rows):
            if one.phase == "ready":
                remember_model(one.model)
        raise SystemExit(EXIT_UNREACHABLE if found.unreachable else 0 if found.ready else EXIT_NOT_READY)


def _watch(inventory: Path | None, interval: float, count: int | None, *, as_json: bool) -> None:
    with Session(inventory, as_json=as_json) as session:
        loaded = session.load()
        from vllm_cluster.serving.status.render_watch import writer
        from vllm_cluster.serving.status.watch import watch

        with writer(as_json=session.as_json, color=SETTINGS.color, paste=session.paste) as shown:
            watch(loaded, interval, shown.show, number=count)


def _wait(inventory: Path | None, seconds: float, *, as_json: bool) -> None:
    with Session(inventory, as_json=as_json) as session:
        loaded = session.load()
        from vllm_cluster.kernel.events import Event
        from vllm_cluster.serving.status.wait import wait

        took = wait(loaded, session.emit, seconds)
        session.emit(Event("result", f"{loaded.cluster}: the model is ready", data={"seconds": round(took, 3)}))


def _show_history(inventory: Path | None, last: int, *, as_json: bool) -> None:
    with Session(inventory, as_json=as_json) as session:
        loaded = session.load()
        from vllm_cluster.serving.status.history import history
        from vllm_cluster.serving.status.render_history import history_document, show_history

        found = history(loaded)[-last:]
        session.show(
            lambda: history_document(loaded.cluster, found),
            lambda: show_history(loaded.cluster, found, color=SETTINGS.color),
        )
