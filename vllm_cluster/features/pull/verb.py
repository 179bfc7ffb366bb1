"""`vcluster pull`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.laptop import expanded, real
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.terminal.completion import complete_hosts
from vllm_cluster.kernel.terminal.options import InventoryPath, Json
from vllm_cluster.kernel.terminal.session import Session

if TYPE_CHECKING:
    from vllm_cluster.features.pull.plan import WantedModel

Model = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="ORG/NAME[@REVISION] of the hub, ./FOLDER here, or HOST:/FOLDER."),
]
Via = Annotated[
    str | None,
    typer.Option(
        "--via",
        metavar="HOST",
        help="The host that downloads. Default: the head.",
        autocompletion=complete_hosts,
    ),
]


Name = Annotated[
    str | None, typer.Option("--as", metavar="NAME", help="The name below model_cache of a folder. Default: its own.")
]


def _wanted(model: str, via: str, name: str, *, detach: bool, of_hosts: str) -> WantedModel:
    """What is to be pulled; `of_hosts` is the option with which it is named as the hosts have it, else empty.

    Raises:
        UsageError: it cannot be named so, or brought so.
    """
    from vllm_cluster.features.pull.folder import is_folder, wanted_folder
    from vllm_cluster.features.pull.plan import WantedModel

    asked, _, revision = model.partition("@")
    if model.startswith("s3://"):
        folder = f"./{name or model.rstrip('/').rpartition('/')[2] or 'FOLDER'}"
        fetch = command_line("aws", "s3", "cp", Option("--recursive"), model, folder)
        copy = "\n".join((fetch, command_line("vcluster", "pull", folder)))
        raise UsageError(f"{model}: vcluster no longer reads buckets", hint=copy)
    if is_folder(model):
        if not of_hosts:
            return wanted_folder(model, name, via, detach=detach)
        if name or not model.startswith("./"):
            there = f"./{name or Path(model.partition(':')[2] or real(expanded(model))).name}"
            hint = command_line("vcluster", "pull", there, of_hosts)
            raise UsageError(f"{of_hosts}: on the hosts {model} is {there}", hint=hint)
    if name:
        folder = f"./{model}" if model and Path(model).is_dir() else "./FOLDER"
        hint = command_line("vcluster", "pull", folder, Option("--as"), name)
        raise UsageError("--as: only a folder gets a name", hint=hint)
    return WantedModel(asked, revision, via, detach)


def pull(
    model: Model = None,
    inventory: InventoryPath = None,
    via: Via = None,
    name: Name = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return once it has started.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Hash every file on every host, and repair what is damaged.")
    ] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Stop the pull that runs; what arrived is kept.")] = False,
    as_json: Json = False,
) -> None:
    """Bring a model to every host."""
    if cancel + verify + detach > 1:
        raise UsageError("--cancel, --verify and --detach exclude each other", hint="vcluster pull --help")
    if not model and not cancel:
        raise UsageError("missing MODEL", hint="vcluster pull ORG/NAME")

    with Session(inventory, as_json=as_json, changes=True) as session:
        from vllm_cluster.features.pull import action
        from vllm_cluster.kernel.plan.pull import through_folder

        of_hosts = Option("--verify") if verify else Option("--cancel") if cancel else ""
        wanted = _wanted(model or "", via or "", name or "", detach=detach, of_hosts=of_hosts)
        loaded = session.load()
        if via == "local" and via not in loaded.hosts:
            text = "--via local: this machine no longer downloads for the hosts"
            raise UsageError(text, hint=through_folder(wanted.model))
        if cancel:
            action.cancel_pull(loaded, session.emit, wanted.model)
        elif verify:
            from vllm_cluster.features.pull.verify import verify as check

            check(loaded, session.emit, wanted)
        else:
            action.pull_model(loaded, session.emit, wanted)
