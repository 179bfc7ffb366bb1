"""`vcluster serve`, `rollback` and `stop`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.terminal.completion import complete_host_list, complete_models, remember_model
from vllm_cluster.kernel.terminal.help import VLLM_FLAGS
from vllm_cluster.kernel.terminal.options import InventoryPath, Json, Wait, Yes
from vllm_cluster.kernel.terminal.session import Session

if TYPE_CHECKING:
    from vllm_cluster.kernel.inventory.model import Inventory
    from vllm_cluster.serving.ask_head import Endpoint
    from vllm_cluster.wire.order import Deployment

Tp = Annotated[
    int | None, typer.Option("--tp", metavar="NUMBER", min=1, help="Tensor parallel size. Default: GPUs of a host.")
]
Pp = Annotated[
    int | None, typer.Option("--pp", metavar="NUMBER", min=1, help="Pipeline parallel size. Default: number of hosts.")
]


Dp = Annotated[
    int | None,
    typer.Option(
        "--dp", metavar="NUMBER", min=1, help="Data parallel size: engines that share requests.", show_default=False
    ),
]
Replicas = Annotated[
    str,
    typer.Option(
        "--replicas",
        metavar="NUMBER|max",
        help="Copies that share the requests, each on GPUs of its own; max: as many as fit.",
        show_default=False,
    ),
]
Ep = Annotated[bool, typer.Option("--ep", help="Deal the experts of a MoE over the GPUs, whole (expert parallel).")]
Engine = Annotated[
    Literal["ray", "mp"] | None,
    typer.Option(
        "--backend",
        metavar="ray|mp",
        help="Join the hosts by Ray, or by vLLM's own processes (mp). Default: the inventory's.",
    ),
]


Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A repository on the hub, or a folder below the model cache; with --from or --recipe, in place of theirs.",
        autocompletion=complete_models,
    ),
]
Flags = Annotated[list[str] | None, typer.Argument(metavar=VLLM_FLAGS, help="Flags passed to vllm serve unchanged.")]
Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--hosts",
        metavar="HOST,HOST",
        help="Use only the GPUs of these hosts. Default: all hosts.",
        autocompletion=complete_host_list,
    ),
]
Name = Annotated[str | None, typer.Option(metavar="NAME", help="The name that clients use. Default: MODEL.")]
Expose = Annotated[bool, typer.Option("--expose", help="Listen on the head's private address, not on loopback.")]
Rollback = Annotated[
    bool,
    typer.Option(
        "--rollback/--no-rollback",
        help="If the model does not become ready, serve the earlier one again (the default).",
        show_default=False,
    ),
]
Pull = Annotated[
    bool | None,
    typer.Option(
        "--pull/--no-pull", help="Pull the model to hosts that lack it before serving. Default: ask; with --yes, pull."
    ),
]
Tunnel = Annotated[bool, typer.Option("--tunnel", help="When ready, forward the API to localhost until Ctrl-C.")]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="TEXT",
        help="Serve what this command line of vLLM asks for: the line, or a file with it (script, compose.yaml); - "
        "reads standard input. Options of this call override it.",
    ),
]
Recipe = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        metavar="FILE",
        help="Serve what this file of vLLM's recipe book asks for on these hosts. Options of this call override it.",
    ),
]
Variant = Annotated[
    str, typer.Option("--variant", metavar="NAME", help="Of --recipe: the variant. Default: the first that fits.")
]
Strategy = Annotated[
    str, typer.Option("--strategy", metavar="NAME", help="Of --recipe: the strategy. Default: by the hosts.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="With --from or --recipe: show what becomes of it; serve nothing.")
]


def serve(
    model: Model = None,
    flags: Flags = None,
    inventory: InventoryPath = None,
    name: Name = None,
    tp: Tp = None,
    pp: Pp = None,
    dp: Dp = None,
    ep: Ep = False,
    replicas: Replicas = "1",
    backend: Engine = None,
    hosts: Hosts = None,
    expose: Expose = False,
    rollback: Rollback = True,
    pull: Pull = None,
    tunnel: Tunnel = False,
    line: From = None,
    recipe: Recipe = None,
    variant: Variant = "",
    strategy: Strategy = "",
    dry_run: DryRun = False,
    as_json: Json = False,
    wait: Wait = 0.0,
    yes: Yes = False,
) -> None:
    """Serve a model on the GPUs of the cluster."""
    named = tuple(name for given in hosts or () for name in given.split(","))
    with Session(inventory, as_json=as_json, changes=True) as session:
        from vllm_cluster.serving.endpoint.open import hold
        from vllm_cluster.serving.endpoint.render import show_endpoint
        from vllm_cluster.serving.serve.translated import RequestSource, taken_from
        from vllm_cluster.wire.order import Deployment

        asked = Deployment(
            *(name or "", model or "", tuple(flags or ()), tp, pp, named, expose, rollback, dp or 1, ep, backend or ""),
            _number(replicas),
        )
        (source := RequestSource(line, recipe, variant, strategy)).ensure_whole(model, dry_run=dry_run)
        # The hosts decide what a recipe asks for.
        loaded = session.load() if recipe or not dry_run else None
        if source:
            asked = taken_from(session, source, asked, loaded, degrees=bool(tp or pp or dp), dry_run=dry_run)
        if loaded is not None and not dry_run:
            # Without a person nothing is asked, and so the hub is not either.
            pulls = pull if pull is not None or session.can_ask(yes) else False
            way = {"confirm": session.confirm(yes), "pull": pulls, "wait": wait}
            endpoint = _served(session, loaded, asked, tunnel=tunnel, translated=bool(source), **way)
            show_endpoint(endpoint, inventory, as_json=session.as_json)
            if tunnel:
                hold(session, loaded, None)


# More than any cluster has.
_MAX_NUMBER = 1024


def _number(replicas: str) -> int:
    """How many replicas are asked for; MAX for as many as fit."""
    from vllm_cluster.kernel.plan.shares import MAX

    if replicas == "max":
        return MAX
    if replicas.isascii() and replicas.isdecimal() and 1 <= int(replicas) <= _MAX_NUMBER:
        return int(replicas)
    raise UsageError(f"--replicas {replicas!r} is not a number of replicas", hint=f"give 1 to {_MAX_NUMBER}, or max")


def _served(
    session: Session, loaded: Inventory, asked: Deployment, *, tunnel: bool, translated: bool, **way: Any
) -> Endpoint:
    """Where the model answers, once it does; what is `translated` may get another layout, by consent."""
    from vllm_cluster.kernel.transport.forward import listener
    from vllm_cluster.serving.serve.base import fit_by
    from vllm_cluster.serving.serve.serve import serve as serve_action

    if tunnel:
        # Else a port in use would be an error after minutes of loading.
        listener(loaded.ports.api).close()
    fit = fit_by(way["confirm"], loaded.cluster) if translated else None
    endpoint = serve_action(loaded, session.emit, asked, fit=fit, **way)
    session.finish()
    remember_model(asked.model)
    return endpoint


def rollback(inventory: InventoryPath = None, as_json: Json = False, wait: Wait = 0.0, yes: Yes = False) -> None:
    """Serve again what was ready before."""
    with Session(inventory, as_json=as_json, changes=True) as session:
        loaded = session.load()
        from vllm_cluster.serving.endpoint.render import show_endpoint
        from vllm_cluster.serving.serve.rollback import rollback as rollback_action

        endpoint = rollback_action(loaded, session.emit, confirm=session.confirm(yes), wait=wait)
        session.finish()
        show_endpoint(endpoint, inventory, as_json=session.as_json)


def stop(inventory: InventoryPath = None, as_json: Json = False, wait: Wait = 0.0, yes: Yes = False) -> None:
    """Stop the served model; keep the cluster up."""
    with Session(inventory, as_json=as_json, changes=True) as session:
        loaded = session.load()
        from vllm_cluster.serving.serve.stop import stop as stop_action

        stop_action(loaded, session.emit, confirm=session.confirm(yes), wait=wait)
