"""`vcluster plan`, `up` and `down`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.laptop import cache_folder
from vllm_cluster.kernel.terminal.completion import complete_hosts, remember_stopped
from vllm_cluster.kernel.terminal.options import InventoryPath, Json, Wait, Yes
from vllm_cluster.kernel.terminal.output import document
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.kernel.terminal.settings import SETTINGS

if TYPE_CHECKING:
    from vllm_cluster.kernel.inventory.model import Inventory

EXIT_CHANGES = 10


def plan(
    inventory: InventoryPath = None,
    as_json: Json = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 10 where there is something to do.")
    ] = False,
) -> None:
    """Show what up would change."""
    with Session(inventory, as_json=as_json) as session:
        loaded = session.load()
        from vllm_cluster.kernel.terminal.plan import plan_document, show_plan
        from vllm_cluster.serving.cluster import up as action

        made = action.plan_cluster(loaded, session.progress)
        session.finish()
        if session.as_json:
            document({"v": 1, **plan_document(made.plan), "stops": made.stops.consequence or None})
        else:
            stops = made.stops.consequence
            show_plan(made.plan, color=SETTINGS.color, stops=stops, verbosity=SETTINGS.verbosity)
        if not made.plan.empty and exit_code:
            raise SystemExit(EXIT_CHANGES)


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
    keep: Annotated[
        str | None,
        typer.Option(
            "--keep",
            metavar="HOST",
            help="Where several hosts have what a head has: HOST is the head; what others have goes.",
            autocompletion=complete_hosts,
        ),
    ] = None,
    new_key: Annotated[
        bool, typer.Option("--new-key", help="None of those hosts is the head: the endpoint gets a new API key.")
    ] = False,
) -> None:
    """Bring every host to the state of the inventory."""
    with Session(inventory, as_json=as_json, changes=True, after_plan=True) as session:
        loaded = _decided(session.load(), keep, new_key=new_key)
        from vllm_cluster.kernel.plan.members import Named
        from vllm_cluster.serving.cluster import up as up_action

        named, cache, confirm = Named(forget or (), former or ()), cache_folder(), session.confirm(yes)
        up_action.bring_up(
            loaded, session.emit, confirm=confirm, cache=cache, wait=wait, named=named, renew_image=pull_image
        )


def _decided(inventory: Inventory, host: str | None, *, new_key: bool) -> Inventory:
    """The inventory, with the host that is the head by a person's word; with `new_key` none is.

    Raises:
        UsageError: the inventory has no such host.
    """
    from vllm_cluster.kernel.assess import require_name

    if host and new_key:
        raise UsageError("--keep and --new-key exclude each other", hint="--keep HOST takes the key that HOST has")
    require_name(inventory, [host] if host else [])
    return inventory.model_copy(update={"keep": "" if new_key else host})


def down(inventory: InventoryPath = None, as_json: Json = False, wait: Wait = 0.0, yes: Yes = False) -> None:
    """Remove the cluster's containers and volumes from all hosts."""
    with Session(inventory, as_json=as_json, changes=True) as session:
        loaded = session.load()
        from vllm_cluster.serving.cluster.down import remove_cluster

        remove_cluster(loaded, session.emit, confirm=session.confirm(yes), wait=wait)
        remember_stopped(loaded.path, None)
