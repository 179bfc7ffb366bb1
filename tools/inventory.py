"""What is made from the model of the inventory: the example, the schema, and the page of all keys."""

from __future__ import annotations

import json

from vllm_cluster.kernel.inventory.model import SECTIONS, Section
from vllm_cluster.kernel.inventory.problems import key_of
from vllm_cluster.kernel.inventory.schema import json_schema
from vllm_cluster.kernel.inventory.template import HostSeed, render
from vllm_cluster.kernel.versions import VLLM_IMAGE

HEAD = """# The keys of the inventory

Every key, with its default where it has one. `NAME` is any host's name. [The inventory](../inventory.md) explains them
by task; [the JSON Schema](../inventory.schema.json), which `vcluster init --schema` prints, is for editors.
"""


def example() -> str:
    """The example in the repository's root."""
    hosts = [HostSeed("gpu1", "ubuntu@gpu1.example.com", "10.0.0.11"), HostSeed("gpu2", "gpu2", "10.0.0.12")]
    return render("lab", hosts, VLLM_IMAGE, "/data/huggingface", schema="docs/inventory.schema.json")


def page() -> str:
    """The page of all keys."""
    return f"{HEAD}\n{_key_table()}"


def schema() -> str:
    """The schema as the file that `vcluster init --schema` prints."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _key_table() -> str:
    """Every key of the file as a Markdown table."""
    rows = ["| key | default | example | meaning |", "|---|---|---|---|"]
    for place, section in SECTIONS.items():
        prefix = tuple("NAME" if part == "*" else part for part in place)
        rows += [_row((*prefix, key), section, key) for key in section.written_keys()]
    return "\n".join(rows) + "\n"


def _row(loc: tuple[str, ...], section: Section, key: str) -> str:
    field = section.model_fields[key]
    if field.is_required():
        default = "required"
    elif field.default and isinstance(field.default, str | int) and not isinstance(field.default, bool):
        default = f"`{'16g' if key == 'shm_size' else field.default}`"
    else:
        default = "`false`" if field.default is False else ""
    example = f"`{field.examples[0]}`" if field.examples else ""
    return f"| `{key_of(loc)}` | {default} | {example} | {(field.description or '').replace('|', '&#124;')} |"
