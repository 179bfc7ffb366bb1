"""The program, and the options before its verbs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vllm_cluster import __version__
from vllm_cluster.cli import edge
from vllm_cluster.cli.options import Color, InventoryPath, Quiet, Verbose
from vllm_cluster.cli.program import program
from vllm_cluster.cli.verbs import VERBS

NAME = "vcluster"

app = program(VERBS, "Turn hosts with SSH and Docker into one vLLM endpoint.")


@app.callback()
def root(
    ctx: typer.Context,
    inventory: InventoryPath = None,
    verbose: Verbose = 0,
    quiet: Quiet = False,
    color: Color = "auto",
    version: Annotated[
        bool, typer.Option("--version", help="Print the version; with -i or -v also the images.")
    ] = False,
) -> None:
    """Print what was asked for without a verb."""
    if version:
        _show_version(ctx, inventory, verbose)
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def _show_version(ctx: typer.Context, inventory: Path | None, verbose: int) -> None:
    typer.echo(f"vcluster {__version__}")
    given = inventory is not None and str(ctx.get_parameter_source("inventory")).endswith("COMMANDLINE")
    if not (given or verbose):
        return
    from vllm_cluster.cli.session import Session
    from vllm_cluster.versions import RAY, VLLM, VLLM_IMAGE

    image = Session(inventory, as_json=False).load().image if given else VLLM_IMAGE
    typer.echo(f"image {image}\nRay {RAY}, added to images that have none\ntested with vLLM {VLLM}")


def main() -> None:
    """Run the program."""
    edge.open_streams()
    # By its name also where it runs as a module: help and remedies are to be pasted.
    raise SystemExit(edge.run(lambda: app(prog_name=NAME)))
