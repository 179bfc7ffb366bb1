"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

InventoryPath = Annotated[
    Path | None,
    typer.Option(
        "--inventory",
        "-i",
        envvar="VCLUSTER_INVENTORY",
        help="The inventory file, or - for standard input. Else inventory.yaml here or above, up to the git root.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Data for programs on standard output.")]
Wait = Annotated[
    float, typer.Option("--wait", metavar="SECONDS", help="Wait this long while somebody else changes the cluster.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before stopping something that runs.")]
