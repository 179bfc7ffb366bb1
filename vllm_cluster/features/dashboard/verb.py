"""`vcluster dashboard`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.terminal.options import InventoryPath, Json
from vllm_cluster.kernel.terminal.session import Session

Port = Annotated[
    int, typer.Option("--port", "-p", metavar="PORT", min=0, max=65535, help="The port on this machine; 0: a free one.")
]
Prometheus = Annotated[
    Path | None,
    typer.Option(
        "--prometheus", metavar="FOLDER", help="Write the files for Prometheus and Grafana. Without FOLDER: monitoring."
    ),
]


def _target(value: str | None) -> str | None:
    if value is None or re.fullmatch(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}", value):
        return value
    raise typer.BadParameter(f"must be HOST:PORT, got {value!r}")


Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="HOST:PORT",
        callback=_target,
        help="With --prometheus: where it reaches the API. Default: the exposed API, else the tunnel of this machine.",
    ),
]


def dashboard(
    inventory: InventoryPath = None,
    port: Port = 0,
    prometheus: Prometheus = None,
    target: Target = None,
    as_json: Json = False,
) -> None:
    """Show the cluster in the browser, or write files for Prometheus."""
    if prometheus is None and target:
        raise UsageError("--target needs --prometheus", again=("--prometheus",))
    with Session(inventory, as_json=as_json) as session:
        if prometheus is None:
            _open(session, port)
        else:
            _write(session, prometheus, target)


def _open(session: Session, port: int) -> None:
    loaded = session.load()
    from vllm_cluster.features.dashboard.render import DashboardFeed
    from vllm_cluster.kernel.events import Event
    from vllm_cluster.serving.status.watch import dashboard as dashboard_action

    feed = DashboardFeed(session.paste)

    def opened(url: str, number: int) -> None:
        text = f"{url} shows {loaded.cluster} to this machine until Ctrl-C"
        session.emit(Event("result", text, data={"url": url, "port": number}))
        session.finish()

    dashboard_action(loaded, feed.show, {"": feed.page, "data": feed.data}, opened, port=port)


def _write(session: Session, output: Path, target: str | None) -> None:
    loaded = session.load()
    from vllm_cluster.features.dashboard.prometheus import CONFIGURATION, write_metrics
    from vllm_cluster.kernel.events import Event
    from vllm_cluster.kernel.laptop import cache_folder

    done = write_metrics(loaded, cache_folder(), output, target=target)
    for name in done.kept:
        text = f"{output / name} was changed and is kept: without it the next call writes it"
        if name == CONFIGURATION:
            session.emit(Event("warning", f"{text}; Prometheus gives the API key to what it names"))
        else:
            session.emit(Event("note", text))
    if not done.reached:
        session.emit(Event("warning", f"nothing forwards {done.target} to the API from this machine yet"))
    # The tunnel may get another port, which the targets then need.
    again = " && ".join(
        ("vcluster endpoint --detach", command_line("vcluster", "dashboard", Option("--prometheus"), str(output)))
    )
    config = command_line("prometheus", Option(f"--config.file={output / CONFIGURATION}"))
    text = f"Wrote {', '.join(done.written)} to {output}. Then run {config if done.reached else again}"
    session.emit(Event("result", text, data={"folder": str(output), "target": done.target}))
