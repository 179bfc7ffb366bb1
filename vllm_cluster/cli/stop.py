"""`vcluster stop`."""

from __future__ import annotations

from vllm_cluster.cli.options import InventoryPath, Json, Wait, Yes
from vllm_cluster.cli.session import Session


def stop(inventory: InventoryPath = None, as_json: Json = False, wait: Wait = 0.0, yes: Yes = False) -> None:
    """End serving and leave the cluster up."""

    def action(session: Session) -> None:
        from vllm_cluster.actions.stop import stop as stop_action

        stop_action(session.load(), session.emit, confirm=session.confirm(yes), wait=wait)

    Session(inventory, as_json=as_json, changes=True).run(action)
