"""The committed files that are made from the model; `python -m tests.unit.inventory.made` writes them anew."""

from __future__ import annotations

import re
from pathlib import Path

from vllm_cluster.inventory.schema import json_schema_text, key_table
from vllm_cluster.inventory.template import HostSeed, render
from vllm_cluster.versions import VLLM_IMAGE

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/inventory.md"
_BEGIN, _END = "<!-- keys: made from the model -->\n\n", "\n<!-- end of keys -->"


def example() -> str:
    """The example that stands in the repository's root."""
    hosts = [HostSeed("gpu1", "ubuntu@gpu1.example.com", "10.0.0.11"), HostSeed("gpu2", "gpu2", "10.0.0.12")]
    return render("lab", hosts, VLLM_IMAGE, "/srv/models", schema="docs/inventory.schema.json")


def page() -> str:
    """The page on the inventory, its table made anew."""
    pattern = re.compile(re.escape(_BEGIN) + ".*?" + re.escape(_END), re.DOTALL)
    return pattern.sub(lambda _: f"{_BEGIN}{key_table()}{_END}", PAGE.read_text(encoding="utf-8"), count=1)


MADE = {
    ROOT / "docs/inventory.schema.json": json_schema_text,
    ROOT / "inventory.example.yaml": example,
    PAGE: page,
}

if __name__ == "__main__":
    for path, make in MADE.items():
        path.write_text(make(), encoding="utf-8")
