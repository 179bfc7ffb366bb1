"""The part of SECURITY.md that is made from the code: every port on which something listens."""

from __future__ import annotations

from pathlib import Path

from vllm_cluster.kernel.inventory.model import Ports
from vllm_cluster.kernel.listeners import LISTENERS, Listener

PATH = Path(__file__).parents[1] / "SECURITY.md"
BEGIN, END = "<!-- what listens: written by `make generate` -->\n", "<!-- end -->\n"
HEAD = "| what listens | verb | on | address | port | who may connect | protected by |\n|---|---|---|---|---|---|---|\n"


def page() -> str:
    """The file with its table renewed; the rest of it is written by hand."""
    before, _, rest = PATH.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}{HEAD}{''.join(map(_row, LISTENERS))}{END}{after}"


def _row(one: Listener) -> str:
    verbs = ", ".join(f"`{verb}`" for verb in one.verbs)
    cells = (one.what, verbs, one.on, one.address, _ports(one), one.clients, one.protection)
    return f"| {' | '.join(cells)} |\n"


def _ports(one: Listener) -> str:
    words = [f"{getattr(Ports(), port)} (`ports.{port}`)" if port in Ports.model_fields else port for port in one.ports]
    return ", ".join(words)
