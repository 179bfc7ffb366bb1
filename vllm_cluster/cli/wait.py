"""`vcluster wait`."""

from __future__ import annotations

from typing import Annotated

import typer

from vllm_cluster.cli.options import InventoryPath, Json
from vllm_cluster.cli.session import Session
from vllm_cluster.errors import UsageError


def wait(
    inventory: InventoryPath = None,
    ready: Annotated[bool, typer.Option("--ready", help="Until the model answers; the default.")] = False,
    gpus: Annotated[bool, typer.Option("--gpus", help="Until Ray reports exactly the planned GPUs.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="DURATION", min=0, max=1e9, help="How long: 90s, 10m, 2h.")
    ] = 600.0,
    as_json: Json = False,
) -> None:
    """Wait until the model is ready, or the GPUs are there."""
    if ready and gpus:
        raise UsageError(
            "--ready and --gpus exclude each other: a model is ready on all GPUs", hint="vcluster wait --ready"
        )

    with Session(inventory, as_json=as_json) as session:
        loaded = session.load()
        from vllm_cluster.actions.wait import wait as wait_action
        from vllm_cluster.events import Event

        took = wait_action(loaded, session.emit, timeout, gpus=gpus)
        what = "the GPUs are there" if gpus else "the model is ready"
        session.emit(Event("result", f"{loaded.cluster}: {what}", data={"seconds": round(took, 3)}))
