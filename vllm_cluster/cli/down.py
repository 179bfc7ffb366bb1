"""`vcluster down`."""

from __future__ import annotations

from vllm_cluster.cli.options import InventoryPath, Json, Wait, Yes
from vllm_cluster.cli.session import Session


def down(inventory: InventoryPath = None, as_json: Json = False, wait: Wait = 0.0, yes: Yes = False) -> None:
    """Remove the cluster's containers and volumes from all hosts."""
    with Session(inventory, as_json=as_json, changes=True) as session:
        loaded = session.load()
        from vllm_cluster.actions.down import down as down_action

        down_action(loaded, session.emit, confirm=session.confirm(yes), wait=wait)
