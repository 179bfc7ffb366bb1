"""Where the program begins: its own help needs no parser, which takes longer to load than all the rest."""

from __future__ import annotations

import os
import sys

from vllm_cluster.cli.verbs import ABOUT, VERBS
from vllm_cluster.kernel.terminal import edge
from vllm_cluster.kernel.terminal.called import set_called
from vllm_cluster.kernel.terminal.help import program_help
from vllm_cluster.kernel.terminal.output import out, with_ends

# The calls that print it, and the options before a verb, as the parser has them.
HELP: tuple[list[str], ...] = ([], ["--help"], ["-h"], ["help"])
OPTIONS = (
    ("--version", "Print the version."),
    ("--install-completion", "Install completion for the current shell."),
    ("--show-completion", "Show completion for the current shell, to copy it or customize the installation."),
    ("-h, --help", "Show this message and exit."),
)


def main() -> None:
    """Run the program."""
    edge.open_streams()
    # By a name of its own also where it runs as a module: help and remedies are to be pasted.
    name = set_called(sys.argv[0], VERBS)
    raise SystemExit(edge.run_to_exit_code(lambda: run(name)))


def run(name: str) -> None:
    """Run this call of the program, under its name."""
    if sys.argv[1:] in HELP and not any(one.endswith("_COMPLETE") for one in os.environ):
        out(*with_ends(program_help(name, ABOUT, VERBS, OPTIONS).split("\n")), end="")
        return
    from vllm_cluster.cli.app import app

    app(prog_name=name)
