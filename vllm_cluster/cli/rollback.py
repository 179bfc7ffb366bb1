"""`vcluster rollback`."""

from __future__ import annotations

from vllm_cluster.cli.options import InventoryPath, Json, Wait, Yes
from vllm_cluster.cli.session import Session


def rollback(inventory: InventoryPath = None, as_json: Json = False, wait: Wait = 0.0, yes: Yes = False) -> None:
    """Serve again what was ready before."""
    with Session(inventory, as_json=as_json, changes=True) as session:
        loaded = session.load()
        from vllm_cluster.actions.rollback import rollback as rollback_action
        from vllm_cluster.cli.render.endpoint import show_endpoint

        endpoint = rollback_action(loaded, session.emit, confirm=session.confirm(yes), wait=wait)
        session.finish()
        show_endpoint(endpoint, inventory, as_json=session.as_json)
