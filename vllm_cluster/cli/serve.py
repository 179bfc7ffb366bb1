"""`vcluster serve`."""

from __future__ import annotations

from typing import Annotated

import typer

from vllm_cluster.cli.options import InventoryPath, Json, Wait, Yes
from vllm_cluster.cli.session import Session

Tp = Annotated[
    int | None, typer.Option("--tp", min=1, help="Tensor parallel size; else the GPUs of a host.", show_default=False)
]
Pp = Annotated[
    int | None,
    typer.Option("--pp", min=1, help="Pipeline parallel size; else the number of hosts.", show_default=False),
]


def serve(
    model: Annotated[str, typer.Argument(help="A repository on the hub, or a folder below the model cache.")],
    flags: Annotated[
        list[str] | None, typer.Argument(metavar="[-- VLLM FLAGS]", help="Handed to vLLM as they are.")
    ] = None,
    inventory: InventoryPath = None,
    name: Annotated[str | None, typer.Option(help="The name that clients use; else MODEL.", show_default=False)] = None,
    tp: Tp = None,
    pp: Pp = None,
    expose: Annotated[
        bool, typer.Option("--expose", help="Listen on the head's cluster address, not on its loopback.")
    ] = False,
    tunnel: Annotated[
        bool, typer.Option("--tunnel", help="Once ready, bring it to this machine until Ctrl-C.")
    ] = False,
    as_json: Json = False,
    wait: Wait = 0.0,
    yes: Yes = False,
) -> None:
    """Serve a model on the whole cluster. Returns once it has generated a token."""

    def action(session: Session) -> None:
        from vllm_cluster.actions.serve import serve as serve_action
        from vllm_cluster.cli.render.endpoint import show_endpoint
        from vllm_cluster.cli.tunnel import hold

        loaded = session.load()
        endpoint = serve_action(
            loaded,
            session.emit,
            model=model,
            name=name,
            tp=tp,
            pp=pp,
            expose=expose,
            extra=flags or (),
            confirm=session.confirm(yes),
            wait=wait,
        )
        session.finish()
        show_endpoint(endpoint, inventory, as_json=session.as_json)
        if tunnel:
            hold(session, loaded, 0)

    Session(inventory, as_json=as_json, changes=True).run(action)
