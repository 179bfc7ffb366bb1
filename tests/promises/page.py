"""docs/promises.md, from the rows that the attacks have left: `python -m tests.promises.page`."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections import defaultdict
from datetime import UTC, datetime
from typing import cast

from tests.promises.texts import PROMISES
from tests.support.figures import FOLDER
from tests.support.paths import ROOT
from vllm_cluster import __version__
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.sandbox.names import ENGINE_IMAGE

PAGE = """# Promises

What vcluster promises, how each promise is attacked, and what came of it the last time.
Each row was written by its attack, never by hand, between {first} and {last}, on {machine}.
`make promises` runs them all.
The hosts are the sandbox's: real sshd, real Docker, real Ray and real vLLM on one machine, unless a row says otherwise.
A row in bold did not hold; the longest times of all cases are shown.

Versions: {versions}.

| # | promise | attack | last figure |
|---|---|---|---|
{rows}
"""


def versions() -> str:
    """What took part."""
    ray = Inventory.model_fields["ray"].default
    docker = subprocess.run(
        ["docker", "version", "--format", "{{.Server.Version}}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    engine = ENGINE_IMAGE.rpartition(":")[2]
    return f"vcluster {__version__}, vLLM {engine}, Ray {ray}, Docker {docker}, Python {platform.python_version()}"


def measured() -> dict[str, list[dict[str, object]]]:
    """The rows by promise, in the order of their attacks' names."""
    rows: dict[str, list[dict[str, object]]] = defaultdict(list)
    for file in sorted(FOLDER.glob("*.json")):
        row = json.loads(file.read_text())
        rows[row["promise"]].append(row)
    return rows


def cell(text: object) -> str:
    """Text that stays within its cell."""
    return str(text).replace("|", "\\|").replace("\n", " ")


def lines(rows: dict[str, list[dict[str, object]]]) -> list[str]:
    """The table's lines; a promise that nothing was measured of says so."""
    table = []
    # What was measured is shown, also where nobody has put it into words.
    for promise in sorted({*PROMISES, *rows}, key=lambda name: int(name.removeprefix("P"))):
        text = PROMISES.get(promise, "")
        for number, row in enumerate(rows.get(promise) or [{"attack": "", "figure": "not run here", "passed": True}]):
            first = (promise, text) if number == 0 else ("", "")
            figure = cell(row["figure"]) if row["passed"] else f"**{cell(row['figure'])}**"
            table.append(f"| {first[0]} | {first[1]} | {cell(row['attack'])} | {figure} |")
    return table


def write() -> bool:
    """Write the page and show the table; whether every row held."""
    rows = measured()
    table = lines(rows)
    times = [datetime.fromtimestamp(cast(int, row["at"]), UTC) for found in rows.values() for row in found]
    page = PAGE.format(
        first=f"{min(times):%Y-%m-%d %H:%M}",
        last=f"{max(times):%Y-%m-%d %H:%M UTC}",
        machine=f"{platform.system()} with {os.cpu_count()} cores",
        versions=versions(),
        rows="\n".join(table),
    )
    (ROOT / "docs" / "promises.md").write_text(page)
    print("\n".join(table))
    return all(row["passed"] for found in rows.values() for row in found)


if __name__ == "__main__":
    sys.exit(0 if write() else 1)
