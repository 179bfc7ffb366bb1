"""Run every attack, and write docs/promises.md from what was measured.

With --last-failed only those that failed the last time are run again; the rows of the others stay.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections import defaultdict
from datetime import UTC, datetime

from tests.e2e.conftest import ROOT
from tests.promises.figures import FOLDER
from tests.promises.texts import PROMISES
from vllm_cluster import __version__
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.sandbox.names import ENGINE_IMAGE

# Those that are there: each keeps figures of its own promises.
TESTS = ("sim", "many", "contract", "property", "e2e/test_3_bad_input.py", "promises")
# How many cases are made up: as many as the promises say, and for each course of events as minutes allow.
DEEP = {"VCLUSTER_DEEP": "1", "VCLUSTER_SIM_EXAMPLES": "300"}
PAGE = """# Promises

What vcluster promises, how each promise is attacked, and what came of it the last time.
Written by `make promises` on {date}, on {machine}; never by hand.
The hosts are the sandbox's: real sshd, real Docker, real Ray and real vLLM on one machine, unless a row says otherwise.

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
    for promise, text in PROMISES.items():
        for number, row in enumerate(rows.get(promise) or [{"attack": "", "figure": "not run here", "passed": True}]):
            first = (promise, text) if number == 0 else ("", "")
            figure = cell(row["figure"]) if row["passed"] else f"**{cell(row['figure'])}**"
            table.append(f"| {first[0]} | {first[1]} | {cell(row['attack'])} | {figure} |")
    return table


def main() -> int:
    """Run, write, and say by the exit code whether every promise was kept."""
    if "--last-failed" in sys.argv:
        for file in FOLDER.glob("*.json"):
            if not json.loads(file.read_text())["passed"]:
                file.unlink()
    else:
        shutil.rmtree(FOLDER, ignore_errors=True)
    there = [str(path) for name in TESTS if (path := ROOT / "tests" / name).exists()]
    argv = [sys.executable, "-m", "pytest", "-m", "not short", *there, *sys.argv[1:]]
    code = subprocess.run(argv, cwd=ROOT, env={**os.environ, **DEEP}, check=False).returncode
    rows = measured()
    table = lines(rows)
    page = PAGE.format(
        date=datetime.now(UTC).date(),
        machine=f"{platform.system()} with {os.cpu_count()} cores",
        versions=versions(),
        rows="\n".join(table),
    )
    (ROOT / "docs" / "promises.md").write_text(page)
    print("\n".join(table))
    broken = [row for found in rows.values() for row in found if not row["passed"]]
    return code or (1 if broken else 0)


if __name__ == "__main__":
    sys.exit(main())
