"""`vcluster stop`."""

from __future__ import annotations

from vllm_cluster.cli.options import InventoryPath, Json, Wait, Yes
from vllm_cluster.cli.session import Session


def stop(inventory: InventoryPath = None, as_json: Json = False, wait: Wait = 0.0, yes: Yes = False) -> None:
    """Stop the served model; keep the cluster up."""
    with Session(inventory, as_json=as_json, changes=True) as session:
        loaded = session.load()
        from vllm_cluster.actions.stop import stop as stop_action

        stop_action(loaded, session.emit, confirm=session.confirm(yes), wait=wait)
