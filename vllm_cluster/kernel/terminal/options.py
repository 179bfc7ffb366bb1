"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def _color(value: str) -> str:
    if value not in ("auto", "always", "never"):
        raise typer.BadParameter(f"must be auto, always or never, got {value!r}")
    return value


InventoryPath = Annotated[
    Path | None,
    typer.Option(
        "--inventory",
        "-i",
        metavar="FILE",
        envvar="VCLUSTER_INVENTORY",
        help="The inventory; - reads standard input. Default: inventory.yaml here, or above up to the git root.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Wait = Annotated[
    float,
    typer.Option(
        "--wait", metavar="DURATION", min=0, max=1e9, help="Wait up to this long while another run changes these hosts."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before stopping or removing anything.")]
Verbose = Annotated[
    int, typer.Option("--verbose", "-v", count=True, help="More output; -vv shows every call to the hosts.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings, errors and the result.")]
Color = Annotated[
    str,
    typer.Option(
        "--color",
        metavar="auto|always|never",
        help="When to use colours; NO_COLOR and FORCE_COLOR apply to auto.",
        callback=_color,
    ),
]
