"""Inventories that the tests vary."""

from __future__ import annotations

import re
from pathlib import Path

from vllm_cluster.kernel.errors import InventoryError
from vllm_cluster.kernel.inventory.load import load_text
from vllm_cluster.kernel.inventory.model import Inventory

TOP = "version: 1\ncluster: lab\nimage: vllm/vllm-openai:v0.19.0\nmodel_cache: /srv/models\n"
HOSTS = "hosts:\n  gpu1:\n    address: 10.0.0.1\n  gpu2:\n    address: 10.0.0.2\n"
SMALLEST = TOP + HOSTS


def read(text: str, folder: Path = Path("/srv/repo")) -> Inventory:
    """The inventory that is in a file with this text."""
    return load_text(text.encode(), path=folder / "inventory.yaml", cwd=folder)


def refusal(text: str) -> list[str]:
    """The lines of the error that this text gets, without the file's name, their number and examples."""
    try:
        read(text)
    except InventoryError as error:
        lines = [line for line in error.message.splitlines() if not line.startswith("    ")]
        if lines[1:]:
            assert re.fullmatch(r"inventory.yaml: \d+ problems", lines.pop(0))
        assert all(line.startswith("inventory.yaml:") for line in lines), lines
        assert error.exit_code == 2
        return [line.removeprefix("inventory.yaml:") for line in lines]
    raise AssertionError("this inventory was accepted")
