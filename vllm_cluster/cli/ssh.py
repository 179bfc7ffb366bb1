"""`vcluster ssh`."""

from __future__ import annotations

import os
import shlex
from typing import Annotated

import typer

from vllm_cluster.cli.completion import complete_hosts
from vllm_cluster.cli.options import InventoryPath
from vllm_cluster.cli.session import Session
from vllm_cluster.errors import UsageError


def ssh(
    host: Annotated[str, typer.Argument(metavar="HOST", help="A host.", autocompletion=complete_hosts)],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND", help="A command line, as ssh takes it. Default: a shell."),
    ] = None,
    inventory: InventoryPath = None,
) -> None:
    """Open a shell on a host, or run a command there."""
    with Session(inventory, as_json=False) as session:
        loaded = session.load()
        from vllm_cluster.actions.ssh import ssh_command

        argv = [*ssh_command(loaded, host), *(["--", *command] if command else [])]
        try:
            os.execvp(argv[0], argv)  # noqa: S606 - it is the user's own terminal from here on
        except OSError as error:
            raise UsageError(
                f"cannot run ssh: {error.strerror}",
                hint=f"install the OpenSSH client, then:\n{shlex.join(argv)}",
            ) from None
