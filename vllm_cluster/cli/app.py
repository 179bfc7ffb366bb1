"""The program, and the options before its verbs."""

from __future__ import annotations

from typing import Annotated

import typer

from vllm_cluster import __version__
from vllm_cluster.cli.main import main
from vllm_cluster.cli.verbs import ABOUT, VERBS
from vllm_cluster.kernel.terminal.options import Color, InventoryPath, Quiet, Verbose
from vllm_cluster.kernel.terminal.output import out, with_ends
from vllm_cluster.kernel.terminal.program import build_program

# Scripts of an installation of before begin with `main` here.
__all__ = ("app", "main")

app = build_program(VERBS, ABOUT)


@app.callback()
def root(
    ctx: typer.Context,
    inventory: InventoryPath = None,
    verbose: Verbose = 0,
    quiet: Quiet = False,
    color: Color = "auto",
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Print what was asked for without a verb."""
    if version:
        out(f"vcluster {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        out(*with_ends(ctx.get_help().split("\n")), end="")
