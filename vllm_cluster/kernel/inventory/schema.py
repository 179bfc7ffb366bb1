"""The inventory's JSON Schema, made from the model."""

from __future__ import annotations

from ruamel.yaml import YAML

from vllm_cluster.kernel.inventory.model import Inventory

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, object]:
    """What editors and other programs need to check an inventory."""
    schema = Inventory.model_json_schema()
    # The hosts are in the file, or come from another source.
    schema["required"].remove("hosts")
    either = [{"required": [key]} for key in ("hosts", "hosts_from")]
    return {"$schema": DIALECT, **_cleaned(schema), "oneOf": either, "title": "vcluster inventory"}


def _cleaned(schema: dict[str, object]) -> dict[str, object]:
    """The schema without pydantic's titles and defaults of whole sections, its examples as values."""
    clean: dict[str, object] = {}
    for key, value in schema.items():
        if key in {"title", "default"} and (key == "title" or isinstance(value, dict) or value in (None, "")):
            continue
        if key == "examples" and isinstance(value, list):
            clean[key] = [YAML(typ="safe", pure=True).load(example) for example in value]
        elif isinstance(value, dict):
            clean[key] = _cleaned(value)
        elif isinstance(value, list):
            clean[key] = [_cleaned(item) if isinstance(item, dict) else item for item in value]
        else:
            clean[key] = value
    return clean
