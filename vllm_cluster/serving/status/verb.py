"""`vcluster status`: now, as it changes, until it is ready, and what was done."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.shell_line import command_line
from vllm_cluster.kernel.terminal.completion import remember_model
from vllm_cluster.kernel.terminal.options import InventoryPath, Json
from vllm_cluster.kernel.terminal.session import SETTINGS, Session

EXIT_NOT_READY = 1
EXIT_UNREACHABLE = 4
INTERVAL_SECONDS = 2.0
TIMEOUT_SECONDS = 600.0
ENTRIES = 20

Watch = Annotated[bool, typer.Option("--watch", "-w", help="Refresh the view, with loads, until Ctrl-C.")]
Interval = Annotated[
    float | None,
    typer.Option("--interval", metavar="DURATION", min=0.5, max=3600, help="With --watch: between two views (2s)."),
]
Number = Annotated[int | None, typer.Option("--count", metavar="N", min=1, help="With --watch: end after N views.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until the model is ready.")]
Gpus = Annotated[bool, typer.Option("--gpus", help="With --wait: until Ray reports exactly the planned GPUs.")]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="DURATION", min=0, max=1e9, help="With --wait: how long at most (10m)."),
]
History = Annotated[bool, typer.Option("--history", help="Show what was done, when, by whom, with the result.")]
Last = Annotated[
    int | None, typer.Option("--last", metavar="N", min=1, help="With --history: the last N entries (20).")
]


def status(
    inventory: InventoryPath = None,
    as_json: Json = False,
    watch: Watch = False,
    interval: Interval = None,
    count: Number = None,
    wait: Wait = False,
    gpus: Gpus = False,
    timeout: Timeout = None,
    history: History = False,
    last: Last = None,
) -> None:
    """Show hosts, GPUs and the served model."""
    modes = {"--watch": watch, "--wait": wait, "--history": history}
    given = [name for name, is_given in modes.items() if is_given]
    if len(given) > 1:
        lines = "\n".join(command_line("vcluster", "status", name) for name in given)
        raise UsageError(f"{' and '.join(given)} exclude each other", hint=lines)
    needed = {
        "--watch": {"--interval": interval is not None, "--count": count is not None},
        "--wait": {"--gpus": gpus, "--timeout": timeout is not None},
        "--history": {"--last": last is not None},
    }
    for mode, options in needed.items():
        names = [name for name, is_given in options.items() if is_given and not modes[mode]]
        if names:
            raise UsageError(f"{' and '.join(names)} {'need' if len(names) > 1 else 'needs'} {mode}", again=(mode,))
    if watch:
        _watch(inventory, interval or INTERVAL_SECONDS, count, as_json=as_json)
    elif wait:
        _wait(inventory, TIMEOUT_SECONDS if timeout is None else timeout, gpus=gpus, as_json=as_json)
    elif history:
        _show_history(inventory, last or ENTRIES, as_json=as_json)
    else:
        _show(inventory, as_json=as_json)


def _show(inventory: Path | None, *, as_json: bool) -> None:
    with Session(inventory, as_json=as_json) as session:
        loaded = session.load()
        from vllm_cluster.serving.status import status as status_action
        from vllm_cluster.serving.status.render import show_status, status_document

        found = status_action.status(loaded, session.progress)
        session.show(
            lambda: status_document(found, session.paste),
            lambda: show_status(found, color=SETTINGS.color, verbosity=SETTINGS.verbosity, paste=session.paste),
        )
        # One that was asked for and never came up may be a misspelt name.
        if found.head and found.head.serve and found.head.serve.phase == "ready":
            remember_model(found.head.serve.model)
        raise SystemExit(EXIT_UNREACHABLE if found.unreachable else 0 if found.ready else EXIT_NOT_READY)


def _watch(inventory: Path | None, interval: float, count: int | None, *, as_json: bool) -> None:
    with Session(inventory, as_json=as_json) as session:
        loaded = session.load()
        from vllm_cluster.serving.status.render_watch import writer
        from vllm_cluster.serving.status.watch import watch

        with writer(as_json=session.as_json, color=SETTINGS.color, paste=session.paste) as shown:
            watch(loaded, interval, shown.show, number=count)


def _wait(inventory: Path | None, seconds: float, *, gpus: bool, as_json: bool) -> None:
    with Session(inventory, as_json=as_json) as session:
        loaded = session.load()
        from vllm_cluster.kernel.events import Event
        from vllm_cluster.serving.status.wait import wait

        took = wait(loaded, session.emit, seconds, gpus=gpus)
        what = "the GPUs are there" if gpus else "the model is ready"
        session.emit(Event("result", f"{loaded.cluster}: {what}", data={"seconds": round(took, 3)}))


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
