"""`vcluster key`."""

from __future__ import annotations

from typing import Annotated

import typer

from vllm_cluster.cli.options import InventoryPath, Json, Wait
from vllm_cluster.cli.session import Session
from vllm_cluster.errors import UsageError

Rotate = Annotated[bool, typer.Option("--rotate", help="Make a new key; nothing restarts. The old one is refused.")]
Grace = Annotated[
    float | None,
    typer.Option(
        "--grace", metavar="DURATION", min=0, max=1e9, help="With --rotate: accept the old key for so long (10m, 1h)."
    ),
]


def key(
    rotate: Rotate = False,
    grace: Grace = None,
    inventory: InventoryPath = None,
    as_json: Json = False,
    wait: Wait = 0.0,
) -> None:
    """Print the API key."""
    with Session(inventory, as_json=as_json, changes=rotate) as session:
        if grace is not None and not rotate:
            raise UsageError("--grace is for --rotate", again=("--rotate",))
        loaded = session.load()
        from vllm_cluster.actions.rotate import rotate as rotate_action
        from vllm_cluster.actions.tunnel import key as key_action
        from vllm_cluster.cli.render.text import plain

        found = rotate_action(loaded, session.progress, grace=grace or 0.0, wait=wait) if rotate else key_action(loaded)
        if rotate:
            from vllm_cluster.actions.metrics import renew_keys
            from vllm_cluster.laptop import cache_folder

            renew_keys(loaded, cache_folder(), found, session.progress)
        session.show(lambda: {"v": 1, "key": found}, lambda: print(plain(found)))
