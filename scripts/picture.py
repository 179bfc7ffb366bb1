"""Run the main job in a sandbox whose hosts are up, and draw what it printed: `picture.py FOLDER` → docs/demo.svg."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from vllm_cluster.kernel.terminal.printable import plain

ROOT = Path(__file__).parents[1]
WIDTH = 112
# The picture is of a second start: before the first one, each host gets its layer with Ray, which takes a minute.
BEFORE = "vcluster up && vcluster down --yes"
COMMANDS = (
    "vcluster up",
    "vcluster serve sandbox/tiny-llama",
    "vcluster status",
    "vcluster complete Hello --max-tokens 8",
    "vcluster down --yes",
)


def run(command: str, folder: Path, console: Console) -> None:
    """Run one command and write it and what it printed, as it came."""
    console.print(Text("$ ", style="bold green") + Text(command, style="bold"))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": str(WIDTH)}
    done = subprocess.run(
        ["bash", "-c", f"{command} 2>&1"], env=environment, cwd=folder, capture_output=True, text=True, check=True
    )
    # A random model may print any character, and XML takes few of those that control a terminal.
    for line in plain(done.stdout).rstrip("\n").split("\n"):
        style = "green" if " is up" in line or " is down" in line or "ready" in line else "default"
        console.print(Text(line, style=style), overflow="ellipsis", no_wrap=True)
    console.print()


def main() -> None:
    """Run every command, then save the picture."""
    console = Console(record=True, width=WIDTH, file=sys.stderr, force_terminal=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("inventory.yaml", "ssh_config"):
            shutil.copy(Path(sys.argv[1]) / name, folder)
        run(BEFORE, Path(folder), Console(file=sys.stderr))
        for command in COMMANDS:
            run(command, Path(folder), console)
    picture = console.export_svg(title="vcluster: one model over two hosts")
    # A picture in a README fetches no fonts from elsewhere.
    picture = re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL)
    (ROOT / "docs" / "demo.svg").write_text(picture)


if __name__ == "__main__":
    main()
