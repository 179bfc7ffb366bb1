"""`vcluster wait`."""

from __future__ import annotations

from typing import Annotated

import typer

from vllm_cluster.cli.options import InventoryPath, Json
from vllm_cluster.cli.session import Session
from vllm_cluster.cli.values import duration, seconds
from vllm_cluster.errors import UsageError


def wait(
    inventory: InventoryPath = None,
    ready: Annotated[bool, typer.Option("--ready", help="Until the model answers; the default.")] = False,
    gpus: Annotated[bool, typer.Option("--gpus", help="Until Ray reports exactly the planned GPUs.")] = False,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", callback=duration, help="How long: 90s, 10m, 2h.")
    ] = "10m",
    as_json: Json = False,
) -> None:
    """Wait until the model is ready, or the GPUs are there."""
    if ready and gpus:
        raise UsageError(
            "--ready and --gpus exclude each other: a model is ready on all GPUs", hint="vcluster wait --ready"
        )

    def action(session: Session) -> None:
        loaded = session.load()
        from vllm_cluster.actions.wait import wait as wait_action
        from vllm_cluster.events import Event

        took = wait_action(loaded, session.emit, seconds(timeout), gpus=gpus)
        what = "the GPUs are there" if gpus else "the model is ready"
        session.emit(Event("result", f"{loaded.cluster}: {what}", data={"seconds": round(took, 3)}))

    Session(inventory, as_json=as_json).run(action)
