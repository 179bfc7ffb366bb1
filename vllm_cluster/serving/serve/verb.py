"""`vcluster serve`, `rollback` and `stop`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, get_args

import typer

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.terminal.completion import (
    complete_host_list,
    complete_models,
    complete_served,
    remember_served,
    remember_stopped,
)
from vllm_cluster.kernel.terminal.help import VLLM_FLAGS
from vllm_cluster.kernel.terminal.options import InventoryPath, Json, Wait, Yes
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.kernel.text import number_of
from vllm_cluster.wire.backends import BackendName

if TYPE_CHECKING:
    pass

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
    BackendName | None,
    typer.Option(
        "--backend",
        metavar="|".join(get_args(BackendName)),
        help="Join the hosts by Ray, or by vLLM's own processes (mp). Default: the inventory's.",
    ),
]


Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A repository on the hub, or a folder below the model cache; with --from, in place of its.",
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
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="TEXT",
        help="Serve what this command line of vLLM asks for: the line, or a file with it (script, compose.yaml, a "
        "recipe of vLLM's book); - reads standard input. Options of this call override it.",
    ),
]
Variant = Annotated[
    str, typer.Option("--variant", metavar="NAME", help="Of a recipe: the variant. Default: the first that fits.")
]
Strategy = Annotated[
    str, typer.Option("--strategy", metavar="NAME", help="Of a recipe: the strategy. Default: by the hosts.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="With --from: show what becomes of it; serve nothing.")]


# As the head's program takes it at most.
MAX_DRAIN = 3600
Drain = Annotated[
    float | None,
    typer.Option(
        "--drain",
        metavar="DURATION",
        min=0,
        max=MAX_DRAIN,
        help="How long open requests may take before the model that they ask ends. Default: 30s; of stop 0s.",
        show_default=False,
    ),
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
    line: From = None,
    variant: Variant = "",
    strategy: Strategy = "",
    dry_run: DryRun = False,
    as_json: Json = False,
    drain: Drain = None,
    wait: Wait = 0.0,
    yes: Yes = False,
) -> None:
    """Serve a model on the GPUs of the cluster."""
    named = tuple(name for given in hosts or () for name in given.split(","))
    with Session(inventory, as_json=as_json, changes=True) as session:
        from vllm_cluster.serving.endpoint.render import show_endpoint
        from vllm_cluster.serving.serve.translated import RequestSource, taken_from
        from vllm_cluster.wire.order import Deployment

        asked = Deployment(
            *(name or "", model or "", tuple(flags or ()), tp, pp, named, expose, rollback, dp or 1, ep, backend or ""),
            _number(replicas),
        )
        (source := RequestSource(line, variant, strategy)).ensure_whole(model, dry_run=dry_run)
        # The hosts decide what a recipe asks for.
        loaded = session.load() if source.is_recipe or not dry_run else None
        if source:
            asked = taken_from(session, source, asked, loaded, degrees=bool(tp or pp or dp), dry_run=dry_run)
        if loaded is not None and not dry_run:
            from vllm_cluster.serving.serve.serve import serve_model

            # Without a person nothing is asked, and so the hub is not either.
            pull = pull if pull is not None or session.can_ask(yes) else False
            fit, emit = source.fit(confirm := session.confirm(yes), loaded.cluster), session.emit
            endpoint = serve_model(loaded, emit, asked, confirm=confirm, pull=pull, wait=wait, drain=drain, fit=fit)
            session.finish()
            remember_served(loaded.path, endpoint.served, asked.model)
            show_endpoint(endpoint, inventory, session.paste, as_json=session.as_json)


# More than any cluster has.
_MAX_NUMBER = 1024


def _number(replicas: str) -> int:
    """How many replicas are asked for; MAX for as many as fit."""
    from vllm_cluster.kernel.plan.shares import MAX

    if replicas == "max":
        return MAX
    if 1 <= (number := number_of(replicas) or 0) <= _MAX_NUMBER:
        return number
    raise UsageError(f"--replicas {replicas!r} is not a number of replicas", hint=f"give 1 to {_MAX_NUMBER}, or max")


ServedName = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="The model, where several are served.",
        show_default=False,
        autocompletion=complete_served,
    ),
]


Before = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME|NUMBER",
        help="The model, where several are served or it was stopped; or a request's number in status --history.",
        show_default=False,
        autocompletion=complete_served,
    ),
]


def rollback(
    name: Before = None,
    inventory: InventoryPath = None,
    as_json: Json = False,
    yes: Yes = False,
) -> None:
    """Serve again what was ready before."""
    with Session(inventory, as_json=as_json, changes=True) as session:
        loaded = session.load()
        from vllm_cluster.serving.endpoint.render import show_endpoint
        from vllm_cluster.serving.serve.rollback import serve_previous

        endpoint = serve_previous(loaded, session.emit, name, confirm=session.confirm(yes))
        session.finish()
        remember_served(loaded.path, endpoint.served)
        show_endpoint(endpoint, inventory, session.paste, as_json=session.as_json)


def stop(
    name: ServedName = None,
    inventory: InventoryPath = None,
    as_json: Json = False,
    drain: Drain = None,
    wait: Wait = 0.0,
    yes: Yes = False,
) -> None:
    """Stop the served model; keep the cluster up."""
    with Session(inventory, as_json=as_json, changes=True) as session:
        loaded = session.load()
        from vllm_cluster.serving.serve.stop import stop_serving

        stop_serving(loaded, session.emit, name, confirm=session.confirm(yes), wait=wait, drain=drain)
        remember_stopped(loaded.path, name)
