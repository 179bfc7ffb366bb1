"""`vcluster schema`."""

from __future__ import annotations


def schema() -> None:
    """Print the JSON Schema of the inventory."""
    import json

    from vllm_cluster.inventory.schema import json_schema

    print(json.dumps(json_schema(), indent=2))
