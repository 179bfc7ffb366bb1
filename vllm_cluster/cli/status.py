"""`vcluster status`."""

from __future__ import annotations

from typing import Annotated

import typer

from vllm_cluster.cli.completion import remember_model
from vllm_cluster.cli.options import InventoryPath, Json
from vllm_cluster.cli.session import SETTINGS, Session

EXIT_NOT_READY = 1
EXIT_UNREACHABLE = 4


def status(
    inventory: InventoryPath = None,
    as_json: Json = False,
    ray: Annotated[bool, typer.Option("--ray", help="Print what ray status prints on the head.")] = False,
) -> None:
    """Show hosts, GPUs and the served model."""

    def action(session: Session) -> None:
        loaded = session.load()
        import json

        from vllm_cluster.actions import status as status_action
        from vllm_cluster.cli.render.status import show_status, status_document
        from vllm_cluster.cli.render.text import plain

        if ray:
            print(plain(status_action.ray_status(loaded, session.progress)))
            return
        found = status_action.status(loaded, session.progress)
        session.finish()
        if session.as_json:
            print(json.dumps(status_document(found, session.paste), default=str))
        else:
            show_status(found, color=SETTINGS.color, verbosity=SETTINGS.verbosity, paste=session.paste)
        if found.head and found.head.serve:
            remember_model(loaded.path, found.head.serve.model)
        raise SystemExit(EXIT_UNREACHABLE if found.unreachable else 0 if found.ready else EXIT_NOT_READY)

    Session(inventory, as_json=as_json).run(action)
