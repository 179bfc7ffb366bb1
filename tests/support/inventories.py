"""An inventory as a verb reads it: found, read and judged."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from vllm_cluster.kernel.inventory.find import read
from vllm_cluster.kernel.inventory.load import load_text
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.laptop import here


def load(path: Path | None, *, stdin: TextIO | None = None, cwd: Path | None = None) -> Inventory:
    """The inventory at `path`, from standard input for `-`, else the nearest inventory.yaml from `cwd` on."""
    found, raw = read(path, stdin=stdin, cwd=cwd)
    return load_text(raw, path=found, cwd=cwd if found else cwd or here(), found=path is None)
