"""`vcluster models`."""

from __future__ import annotations

from vllm_cluster.cli.options import InventoryPath, Json
from vllm_cluster.cli.session import SETTINGS, Session


def models(inventory: InventoryPath = None, as_json: Json = False) -> None:
    """Show which models the hosts have, and whether they are complete."""

    def action(session: Session) -> None:
        loaded = session.load()
        import json

        from vllm_cluster.actions.models import models as models_action
        from vllm_cluster.cli.render.models import models_document, show_models
        from vllm_cluster.errors import combine

        found = models_action(loaded, session.progress)
        session.finish()
        if session.as_json:
            print(json.dumps(models_document(found)))
        else:
            show_models(found, loaded.model_cache, color=SETTINGS.color)
        if found.failures:
            raise combine(dict(found.failures)).with_hosts(loaded.hosts)

    Session(inventory, as_json=as_json).run(action)
