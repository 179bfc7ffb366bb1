"""Lists Ray's nodes; the one part that imports Ray, in a process of its own because that costs memory and can hang."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable
from typing import Any

# Ray keeps up to a thousand of them.
MAX_DEAD_NODES = 20


Table = Callable[[], list[dict[str, Any]]]
# Resources by node id; a resource that is all taken is not named.
Free = Callable[[], dict[str, dict[str, float]]]


def node_table(address: str) -> tuple[Table, Free | None]:
    """What ray.nodes() asks, without becoming a driver, which costs a job and a second; and what is free of it."""
    try:
        options = importlib.import_module("ray._raylet").GcsClientOptions
        state = importlib.import_module("ray._private.state").GlobalState()
        state._initialize_global_state(
            options.create(address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
        )
        return state.node_table, getattr(state, "available_resources_per_node", None)
    except (ImportError, AttributeError, TypeError):  # private: another Ray may not have it
        ray = importlib.import_module("ray")
        ray.init(address=address, log_to_driver=False)
        return ray.nodes, None


def ray_nodes(address: str, seconds: float) -> int:
    """Print Ray's nodes every so often until Ray does not answer; a process of its own, for what it imports."""
    table, free = node_table(address)
    while True:
        left = free() if free else {}
        every = [
            {
                "id": node["NodeID"],
                "address": node["NodeManagerAddress"],
                "alive": bool(node["Alive"]),
                "gpus": float(node["Resources"].get("GPU", 0)),
                **({"free": float(left[node["NodeID"]].get("GPU", 0))} if node["NodeID"] in left else {}),
            }
            for node in table()
        ]
        dead = [node for node in every if not node["alive"]][-MAX_DEAD_NODES:]
        print(json.dumps({"nodes": [node for node in every if node["alive"]] + dead}), flush=True)
        time.sleep(seconds)
