"""The program: its verbs, and the options before them."""

from __future__ import annotations

from typing import Annotated

import typer

from vllm_cluster import __version__
from vllm_cluster.cli import (
    bundle,
    check,
    down,
    edge,
    explain,
    facts,
    fit,
    init,
    key,
    plan,
    sandbox,
    schema,
    serve,
    status,
    stop,
    tunnel,
    up,
)
from vllm_cluster.cli.session import SETTINGS

app = typer.Typer(
    rich_markup_mode=None,  # plain help: rich doubles the time until it shows
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Turn a list of machines with SSH and Docker into one vLLM endpoint.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vcluster {__version__}")
        raise typer.Exit


@app.callback()
def root(
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="Tell more; twice for all.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Tell only the result and what is wrong.")] = False,
    color: Annotated[str, typer.Option(metavar="auto|always|never", help="Colour; NO_COLOR is honoured.")] = "auto",
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Take the options before the verb."""
    if color not in ("auto", "always", "never"):
        raise typer.BadParameter("say auto, always or never", param_hint="--color")
    SETTINGS.verbosity = -1 if quiet else verbose
    SETTINGS.color = color


app.command()(init.init)
app.command()(fit.fit)
app.command()(check.check)
app.command()(facts.facts)
app.command()(plan.plan)
app.command()(up.up)
app.command()(status.status)
app.command(context_settings={"ignore_unknown_options": False})(serve.serve)
app.command()(stop.stop)
app.command()(tunnel.tunnel)
app.command()(key.key)
app.command()(explain.explain)
app.command()(bundle.bundle)
app.command()(down.down)
app.command()(schema.schema)
app.add_typer(sandbox.app, name="sandbox")


def main() -> None:
    """Run the program."""
    edge.open_streams()
    raise SystemExit(edge.run(app))
