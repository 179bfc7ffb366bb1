"""`vcluster models`."""

from __future__ import annotations

from typing import Annotated

import typer

from vllm_cluster.features.pull.feature import MODELS
from vllm_cluster.kernel.terminal.completion import complete_hosts, complete_unserved, forget_model
from vllm_cluster.kernel.terminal.options import InventoryPath, Json, Yes
from vllm_cluster.kernel.terminal.program import group
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.kernel.terminal.settings import SETTINGS

app = group(MODELS, "Show and remove the models of the hosts. Without a verb: ls.", "ls")


def models_ls(inventory: InventoryPath = None, as_json: Json = False) -> None:
    """Show which models the hosts have, and whether they are complete."""
    with Session(inventory, as_json=as_json) as session:
        loaded = session.load()
        from vllm_cluster.features.pull.models import models as models_action
        from vllm_cluster.features.pull.render import models_document, show_models
        from vllm_cluster.kernel.errors import combine

        found = models_action(loaded, session.progress)
        session.show(
            lambda: models_document(found), lambda: show_models(found, loaded.model_cache, color=SETTINGS.color)
        )
        if found.failures:
            raise combine(dict(found.failures)).with_hosts(loaded.hosts)


def rm(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A repository of the hub, or ./NAME for a folder below model_cache.",
            autocompletion=complete_unserved,
        ),
    ],
    hosts: Annotated[
        list[str] | None,
        typer.Argument(metavar="HOST", help="Hosts that lose it. Default: all.", autocompletion=complete_hosts),
    ] = None,
    inventory: InventoryPath = None,
    as_json: Json = False,
    yes: Yes = False,
) -> None:
    """Remove a model from the hosts."""
    with Session(inventory, as_json=as_json, changes=True) as session:
        loaded = session.load()
        from vllm_cluster.features.pull.models_remove import remove_model

        remove_model(loaded, session.emit, model=model, hosts=hosts or (), confirm=session.confirm(yes))
        if not hosts:
            forget_model(model)
