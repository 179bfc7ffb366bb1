"""Run the main job in the sandbox, whose hosts are up, and draw what it printed: docs/demo.svg."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
WIDTH = 112
COMMANDS = (
    "vcluster up",
    "vcluster serve sandbox/tiny-llama",
    "vcluster status",
    "vcluster down",
)


def run(command: str, console: Console) -> None:
    """Run one command and write it and what it printed, as it came."""
    console.print(Text("$ ", style="bold green") + Text(command, style="bold"))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": str(WIDTH)}
    done = subprocess.run(
        ["bash", "-c", f"{command} 2>&1"], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    for line in done.stdout.splitlines():
        style = "green" if " is up" in line or " is down" in line or "ready" in line else "default"
        console.print(Text(line, style=style), overflow="ellipsis", no_wrap=True)
    console.print()


def main() -> None:
    """Run every command, then save the picture."""
    console = Console(record=True, width=WIDTH, file=sys.stderr, force_terminal=True)
    for command in COMMANDS:
        run(command, console)
    console.save_svg(str(ROOT / "docs" / "demo.svg"), title="vcluster: one model over two hosts")


if __name__ == "__main__":
    main()
