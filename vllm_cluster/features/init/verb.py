"""`vcluster init`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.terminal.output import data, document, err, out, to_paste, with_ends
from vllm_cluster.kernel.terminal.session import Session

Hosts = Annotated[
    list[str] | None, typer.Option("--host", metavar="NAME[=ADDRESS]", help="A host and its address; repeatable.")
]
FromSshConfig = Annotated[
    str | None,
    typer.Option("--from-ssh-config", metavar="PATTERN", help="The hosts of ssh_config that match, such as 'gpu*'."),
]
ClusterName = Annotated[
    str | None,
    typer.Option("--cluster", metavar="NAME", help="Name of the cluster. Default: the name of the folder of the file."),
]
Preset = Annotated[
    str,
    typer.Option(
        "--preset", metavar="NAME", help="Begin with what NAME has: spark, two DGX Spark. Without a name: list them."
    ),
]
Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write; - is standard output.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file.")]
Schema = Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of an inventory instead.")]


def init(
    hosts: Hosts = None,
    from_ssh_config: FromSshConfig = None,
    cluster: ClusterName = None,
    preset: Preset = "",
    output: Output = Path("inventory.yaml"),
    force: Force = False,
    schema: Schema = False,
) -> None:
    """Write a commented inventory, or print its JSON Schema."""
    if schema:
        from vllm_cluster.kernel.inventory.schema import json_schema

        document(json_schema(), indent=2)
        return
    with Session(None, as_json=False) as session:
        from vllm_cluster.features.init.action import LIST, find_preset, write
        from vllm_cluster.features.init.presets import PRESETS
        from vllm_cluster.kernel.text import count

        if preset == LIST:
            out(*with_ends(f"{name:<8}{one.about}" for name, one in PRESETS.items()), end="")
            return
        written = write(
            hosts=hosts or [],
            pattern=from_ssh_config,
            cluster=cluster or _name(output),
            output=None if str(output) == "-" else output,
            force=force,
            preset=find_preset(preset) if preset else None,
        )
        if written.output is None:
            data(written.text)
            return
        named = [] if str(output) == "inventory.yaml" else [Option("-i"), str(output)]
        after = command_line("vcluster", "check", *named)
        err(f"Wrote {output} ({count(written.hosts, 'host')}).", to_paste(" Then run ", session.paste(after)))


def _name(output: Path) -> str:
    """The name by the folder, else what the person answers: a default would be the same for unrelated clusters."""
    from vllm_cluster.features.init.action import cluster_name
    from vllm_cluster.kernel.errors import UsageError
    from vllm_cluster.kernel.laptop import here

    folder = here() if str(output) == "-" else output.parent if output.is_absolute() else (here() / output).parent
    name = cluster_name(folder)
    if name is None and sys.stdin.isatty() and sys.stderr.isatty():
        name = typer.prompt("The cluster's name (a-z, 0-9 and -)", err=True)
    if name is None:
        raise UsageError(f"cannot derive a cluster name from the folder {folder}", hint="add --cluster NAME")
    return name
