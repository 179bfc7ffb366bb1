"""Looks at the links between an inventory's hosts, or tries the collective, and prints JSON lines.

python -m tests.e2e.linked INVENTORY mesh|collective
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from vllm_cluster.actions.survey import connected, facts_of
from vllm_cluster.inventory.load import load
from vllm_cluster.run.collective import Report, collective
from vllm_cluster.run.events import Event
from vllm_cluster.run.mesh import mesh


def told(event: Event) -> None:
    """One event."""
    sys.stdout.write(json.dumps({"event": event.kind, "host": event.host, "text": event.text}) + "\n")
    sys.stdout.flush()


def main(path: str, what: str) -> None:
    """The events, then what was found."""
    inventory = load(Path(path), stdin=sys.stdin, cwd=Path.cwd())
    with connected(inventory, told) as fleet:
        facts = facts_of(inventory, fleet)
        if what == "mesh":
            report = Report(tuple(mesh(fleet, inventory, facts, told)))
        else:
            report = collective(fleet, inventory, facts, told)
    sys.stdout.write(json.dumps({"event": "result", **asdict(report)}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
