"""`vcluster metrics`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from vllm_cluster.kernel.shell_line import command_line
from vllm_cluster.kernel.terminal.options import InventoryPath, Json
from vllm_cluster.kernel.terminal.session import Session

Output = Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where to write the files.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files that were changed, too.")]


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
        help="Where Prometheus reaches the API. Default: the exposed API, else the tunnel of this machine.",
    ),
]


def metrics(
    output: Output = Path("monitoring"),
    target: Target = None,
    force: Force = False,
    inventory: InventoryPath = None,
    as_json: Json = False,
) -> None:
    """Write Prometheus targets, alert rules, a Grafana dashboard."""
    with Session(inventory, as_json=as_json) as session:
        loaded = session.load()
        from vllm_cluster.features.metrics.action import metrics as metrics_action
        from vllm_cluster.kernel.events import Event
        from vllm_cluster.kernel.laptop import cache_folder

        done = metrics_action(loaded, cache_folder(), output, target=target, force=force)
        for name in done.kept:
            text = f"{output / name} was changed and is kept: --force overwrites it"
            session.emit(Event("note", text))
        if not done.reached:
            session.emit(Event("warning", f"nothing forwards {done.target} to the API from this machine yet"))
        # The tunnel may get another port, which the targets then need.
        again = " && ".join(("vcluster endpoint --detach", command_line("vcluster", "metrics", "-o", str(output))))
        config = command_line("prometheus", f"--config.file={output / 'prometheus.yml'}")
        text = f"Wrote {', '.join(done.written)} to {output}. Next: {config if done.reached else again}"
        session.emit(Event("result", text, data={"folder": str(output), "target": done.target}))
