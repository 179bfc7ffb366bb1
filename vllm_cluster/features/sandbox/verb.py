"""`vcluster sandbox`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.terminal.options import Json
from vllm_cluster.kernel.terminal.program import group
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.kernel.terminal.verb import Verb
from vllm_cluster.kernel.text import count

SANDBOX = {
    "up": Verb(
        "Verbs",
        "features.sandbox.verb:up",
        "Create local hosts, a CPU image, a tiny model, an inventory.",
        "The hosts are containers with an sshd and a Docker of their own.",
        ("vcluster sandbox up --hosts 2 --gpus 2",),
    ),
    "down": Verb(
        "Verbs",
        "features.sandbox.verb:down",
        "Remove the local hosts and their folder.",
        "Asks nothing, also while a model is served there. An inventory that was changed stays in the folder.",
        examples=("vcluster sandbox down", "vcluster sandbox down --purge"),
    ),
}

app = group(SANDBOX, "Create and remove a local test cluster.")


Folder = Annotated[Path, typer.Option("--dir", metavar="FOLDER", help="The folder of its inventory and keys.")]


def up(
    hosts: Annotated[int, typer.Option(min=1, max=16, metavar="NUMBER", help="How many hosts, 1 to 16.")] = 2,
    gpus: Annotated[int, typer.Option(min=1, max=8, metavar="NUMBER", help="Logical GPUs of each host, 1 to 8.")] = 2,
    folder: Folder = Path("sandbox"),
    as_json: Json = False,
) -> None:
    """Make hosts with sshd and Docker of their own, a CPU image of vLLM, a tiny model, and an inventory."""
    with Session(None, as_json=as_json, changes=True) as session:
        import vcluster_sandbox as sandbox
        from vllm_cluster.kernel.events import Event

        inventory = sandbox.up(
            hosts=hosts, gpus=gpus, folder=folder, report=lambda text: session.emit(Event("progress", text))
        )
        after = command_line("vcluster", "up", Option("-i"), str(inventory))
        text = f"The sandbox has {count(hosts, 'host')}. Then run {after}"
        session.emit(Event("result", text, data={"inventory": str(inventory)}))


def down(
    folder: Folder = Path("sandbox"),
    purge: Annotated[bool, typer.Option("--purge", help="Also remove its images and everything built.")] = False,
    as_json: Json = False,
) -> None:
    """Remove the sandbox's hosts and its folder."""
    with Session(None, as_json=as_json, changes=True) as session:
        import vcluster_sandbox as sandbox
        from vllm_cluster.kernel.events import Event

        found = sandbox.down(folder=folder, purge=purge, report=lambda text: session.emit(Event("progress", text)))
        text = "Removed the sandbox." if found else f"there is no sandbox in {folder}"
        session.emit(Event("result", text, data={"removed": found}))
