"""The inventory's JSON Schema and its table of keys, both made from the model."""

from __future__ import annotations

import json
from typing import Any

from ruamel.yaml import YAML

from vllm_cluster.inventory.model import SECTIONS, Inventory, Section
from vllm_cluster.inventory.problems import key_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """What editors and other programs need to check an inventory."""
    cleaned = _cleaned(Inventory.model_json_schema())
    return {"$schema": DIALECT, **cleaned, "title": "vcluster inventory"}


def json_schema_text() -> str:
    """The schema as the file that `vcluster schema` prints."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _cleaned(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without pydantic's titles and defaults of whole sections, its examples as values."""
    clean: dict[str, Any] = {}
    for key, value in schema.items():
        if key in {"title", "default"} and (key == "title" or isinstance(value, dict) or value is None):
            continue
        if key == "examples":
            clean[key] = [YAML(typ="safe", pure=True).load(example) for example in value]
        elif isinstance(value, dict):
            clean[key] = _cleaned(value)
        elif isinstance(value, list):
            clean[key] = [_cleaned(item) if isinstance(item, dict) else item for item in value]
        else:
            clean[key] = value
    return clean


def key_table() -> str:
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
    elif isinstance(field.default, str | int) and not isinstance(field.default, bool):
        default = f"`{'16g' if key == 'shm_size' else field.default}`"
    else:
        default = "`false`" if field.default is False else ""
    example = f"`{field.examples[0]}`" if field.examples else ""
    return f"| `{key_of(loc)}` | {default} | {example} | {(field.description or '').replace('|', '&#124;')} |"
