"""`vcluster key`."""

from __future__ import annotations

from vllm_cluster.cli.options import InventoryPath, Json
from vllm_cluster.cli.session import Session


def key(inventory: InventoryPath = None, as_json: Json = False) -> None:
    """Print the API key."""

    def action(session: Session) -> None:
        loaded = session.load()
        import json

        from vllm_cluster.actions.tunnel import key as key_action
        from vllm_cluster.cli.render.text import plain

        found = key_action(loaded)
        print(json.dumps({"v": 1, "key": found}) if session.as_json else plain(found))

    Session(inventory, as_json=as_json).run(action)
