"""Command lines that texts and pages show, parsed as the program parses them."""

from __future__ import annotations

from vllm_cluster.cli.app import app
from vllm_cluster.kernel.errors import VclusterError


def parsed(words: list[str]) -> object:
    """The exit code of a command line that is parsed and not run, or its error."""
    try:
        app([words[0], "--help", *words[1:]], prog_name="vcluster")
    except SystemExit as end:
        return end.code
    except VclusterError as error:
        return error
    return None
