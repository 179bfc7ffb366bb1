"""`vcluster history`."""

from __future__ import annotations

from typing import Annotated

import typer

from vllm_cluster.cli.options import InventoryPath, Json
from vllm_cluster.cli.session import SETTINGS, Session

Last = Annotated[int, typer.Option("--last", metavar="NUMBER", min=1, help="Show the last NUMBER entries.")]


def history(inventory: InventoryPath = None, last: Last = 20, as_json: Json = False) -> None:
    """Show what was done, when, by whom, with the result."""
    with Session(inventory, as_json=as_json) as session:
        loaded = session.load()
        from vllm_cluster.actions.history import history as history_action
        from vllm_cluster.cli.render.history import history_document, show_history

        found = history_action(loaded)[-last:]
        session.show(
            lambda: history_document(loaded.cluster, found),
            lambda: show_history(loaded.cluster, found, color=SETTINGS.color),
        )
