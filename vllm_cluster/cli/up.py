"""`vcluster up`."""

from __future__ import annotations

from typing import Annotated

import typer

from vllm_cluster.cli import plan
from vllm_cluster.cli.options import InventoryPath, Json, Wait, Yes
from vllm_cluster.cli.session import Session
from vllm_cluster.errors import UsageError
from vllm_cluster.laptop import cache_folder


def up(
    inventory: InventoryPath = None,
    as_json: Json = False,
    wait: Wait = 0.0,
    yes: Yes = False,
    forget: Annotated[
        list[str] | None,
        typer.Option(
            "--forget", metavar="HOST", help="Forget HOST, which left the inventory and is gone for good. Repeatable."
        ),
    ] = None,
    former: Annotated[
        list[str] | None,
        typer.Option(
            "--former",
            metavar="[USER@]HOST[:PORT]",
            help="Also remove the node from a host that left the inventory and that no inventory on this machine has "
            "named. Repeatable.",
        ),
    ] = None,
    pull_image: Annotated[
        bool, typer.Option("--pull-image", help="Resolve the image's tag in its registry again.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan, as vcluster plan does.")] = False,
) -> None:
    """Bring every host to the state of the inventory."""
    with Session(inventory, as_json=as_json, changes=True, after_plan=True) as session:
        if dry_run and pull_image:
            raise UsageError("--pull-image pulls, and --dry-run changes nothing", hint="leave one of them out")
        if dry_run:
            plan.show(session, exit_code=False, forget=forget or (), former=former or ())
            return
        loaded = session.load()
        from vllm_cluster.actions import up as up_action
        from vllm_cluster.core.members import Named

        named, cache, confirm = Named(forget or (), former or ()), cache_folder(), session.confirm(yes)
        up_action.up(loaded, session.emit, confirm=confirm, cache=cache, wait=wait, named=named, renew_image=pull_image)
