"""`vcluster tunnel`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from vllm_cluster.cli.options import InventoryPath, Json
from vllm_cluster.cli.session import Session

if TYPE_CHECKING:
    from vllm_cluster.inventory.model import Inventory


def tunnel(
    inventory: InventoryPath = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            "-p",
            metavar="PORT",
            min=1,
            max=65535,
            help="The local port. Default: that of the API.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Forward the API to localhost until Ctrl-C."""
    Session(inventory, as_json=as_json).run(lambda session: hold(session, session.load(), port))


def hold(session: Session, inventory: Inventory, port: int | None) -> None:
    """Keep a tunnel open until somebody ends the program."""
    import signal

    from vllm_cluster.actions.tunnel import tunnel as tunnel_action

    wanted = inventory.ports.api if port is None else port
    try:
        tunnel_action(inventory, session.emit, port=wanted, until=signal.pause)
    except KeyboardInterrupt:
        session.finish()  # the one way in which a tunnel ends is not a failure
