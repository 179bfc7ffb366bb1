"""What is made from the model of the inventory: the example, and the page of all keys."""

from __future__ import annotations

from vllm_cluster.inventory.schema import key_table
from vllm_cluster.inventory.template import HostSeed, render
from vllm_cluster.versions import VLLM_IMAGE

HEAD = """# The keys of the inventory

Every key, with its default where it has one. `NAME` is any host's name. [The inventory](../inventory.md) explains them
by task; [the JSON Schema](../inventory.schema.json), which `vcluster schema` prints, is for editors.
"""


def example() -> str:
    """The example in the repository's root."""
    hosts = [HostSeed("gpu1", "ubuntu@gpu1.example.com", "10.0.0.11"), HostSeed("gpu2", "gpu2", "10.0.0.12")]
    return render("lab", hosts, VLLM_IMAGE, "/srv/models", schema="docs/inventory.schema.json")


def page() -> str:
    """The page of all keys."""
    return f"{HEAD}\n{key_table()}"
