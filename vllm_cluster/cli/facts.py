"""`vcluster facts`."""

from __future__ import annotations

from typing import Annotated

import typer

from vllm_cluster.cli.completion import complete_hosts
from vllm_cluster.cli.options import InventoryPath, Json
from vllm_cluster.cli.session import SETTINGS, Session


def facts(
    hosts: Annotated[
        list[str] | None,
        typer.Argument(metavar="HOST", help="Hosts of the inventory. Default: all.", autocompletion=complete_hosts),
    ] = None,
    inventory: InventoryPath = None,
    as_json: Json = False,
) -> None:
    """Show what the hosts are: GPUs, Docker, network, RDMA, memory and disks."""
    with Session(inventory, as_json=as_json) as session:
        loaded = session.load()
        from vllm_cluster.actions import facts as facts_action
        from vllm_cluster.cli.render.facts import facts_document, show_facts

        found = facts_action.facts(loaded, hosts or (), session.progress)
        session.show(lambda: facts_document(found), lambda: show_facts(found, color=SETTINGS.color))
