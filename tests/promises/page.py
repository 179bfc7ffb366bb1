"""docs/promises.md, from the rows that the attacks have left: `python -m tests.promises.page`."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Collection
from datetime import UTC, datetime
from typing import cast

from tests.promises.texts import PROMISES
from tests.support.figures import FOLDER
from tests.support.paths import ROOT
from vcluster_sandbox.names import CPU_IMAGE
from vllm_cluster import __version__
from vllm_cluster.kernel.inventory.model import Inventory

PATH = ROOT / "docs" / "promises.md"
PAGE = """# Promises

What vcluster promises, how each promise is attacked, and what came of it the last time.
Each row was written by its attack, never by hand, on its day, on {machine}.
`make promises` runs them all; `make promises ARGS="P31 P34"` runs those of some promises, and the other rows stay.
The hosts are the sandbox's: real sshd, real Docker, real Ray and real vLLM on one machine, unless a row names others.
A row in bold did not hold; the longest times of all cases are shown.

Versions on the last day: {versions}.

| # | promise | attack | last figure | day |
|---|---|---|---|---|
{rows}
"""


def versions() -> str:
    """What took part."""
    ray = Inventory.model_fields["ray"].default
    docker = subprocess.run(
        ["docker", "version", "--format", "{{.Server.Version}}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    engine = CPU_IMAGE.rpartition(":")[2]
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


def kept(without: Collection[str]) -> dict[str, list[str]]:
    """The lines of the page as it is, by promise: those that are not measured again."""
    found: dict[str, list[str]] = {}
    for line in PATH.read_text().splitlines():
        if number := re.match(r"\| (P\d+) ", line):
            found[number[1]] = []
        if found and line.startswith("| "):
            found[list(found)[-1]].append(line)
    return {promise: rows for promise, rows in found.items() if promise not in without}


def lines(rows: dict[str, list[dict[str, object]]], others: dict[str, list[str]]) -> list[str]:
    """The table's lines; a promise that nothing was measured of has a line that names this."""
    table = []
    # What was measured is shown, also where it has no text.
    for promise in sorted({*PROMISES, *rows, *others}, key=lambda name: int(name.removeprefix("P"))):
        if promise in others:
            table += others[promise]
            continue
        text = PROMISES.get(promise, "")
        for number, row in enumerate(rows.get(promise) or [{"attack": "", "figure": "not run here", "passed": True}]):
            first = (promise, text) if number == 0 else ("", "")
            figure = cell(row["figure"]) if row["passed"] else f"**{cell(row['figure'])}**"
            day = f"{datetime.fromtimestamp(cast(int, row['at']), UTC):%Y-%m-%d}" if "at" in row else ""
            table.append(f"| {first[0]} | {first[1]} | {cell(row['attack'])} | {figure} | {day} |")
    return table


def write(only: Collection[str] = ()) -> bool:
    """Write the page, with the rows of these promises alone where any are named; whether every row held."""
    rows = {promise: found for promise, found in measured().items() if not only or promise in only}
    table = lines(rows, kept(only) if only else {})
    machine = f"{platform.system()} with {os.cpu_count()} cores"
    PATH.write_text(PAGE.format(machine=machine, versions=versions(), rows="\n".join(table)))
    print("\n".join(table))
    return all(row["passed"] for found in rows.values() for row in found)


if __name__ == "__main__":
    sys.exit(0 if write() else 1)
