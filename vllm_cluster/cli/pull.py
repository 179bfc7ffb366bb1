"""`vcluster pull`."""

from __future__ import annotations

from typing import Annotated

import typer

from vllm_cluster.cli.completion import complete_hosts
from vllm_cluster.cli.options import InventoryPath, Json
from vllm_cluster.cli.session import Session
from vllm_cluster.errors import UsageError

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL[@REVISION]", help="A repository of the hub; a branch, tag or commit of it.", show_default=False
    ),
]
Via = Annotated[
    str | None,
    typer.Option(
        "--via",
        metavar="HOST",
        help="The host that downloads. Default: the head.",
        show_default=False,
        autocompletion=complete_hosts,
    ),
]


def pull(
    model: Model = None,
    inventory: InventoryPath = None,
    via: Via = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return once it has started.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Hash every file on every host, and repair what is damaged.")
    ] = False,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the pull that runs; what arrived is kept.")] = False,
    as_json: Json = False,
) -> None:
    """Bring a model to every host."""
    if stop + verify + detach > 1:
        raise UsageError("--stop, --verify and --detach exclude each other", hint="vcluster pull --help")
    if not model and not stop:
        raise UsageError("missing MODEL", hint="vcluster pull ORG/NAME")

    def action(session: Session) -> None:
        loaded = session.load()
        from vllm_cluster.actions import pull as action
        from vllm_cluster.actions.pull_plan import WantedModel

        if stop:
            action.stop(loaded, session.emit, str(model or "").partition("@")[0])
            return
        name, _, revision = str(model).partition("@")
        wanted = WantedModel(name, revision, via or "", detach)
        if verify:
            from vllm_cluster.actions.pull_verify import verify as check

            check(loaded, session.emit, wanted)
        else:
            action.pull(loaded, session.emit, wanted)

    Session(inventory, as_json=as_json, changes=True).run(action)
