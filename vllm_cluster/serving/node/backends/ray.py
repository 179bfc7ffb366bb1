"""Ray on one node: how it shows that it runs, where it listens, which nodes it has, and GPUs taken from it.

What imports Ray runs in processes of its own, because that costs memory and can hang.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata

from vllm_cluster.serving.node.parse_argv import Place, option

# The file of the token that nodes and drivers show.
TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"  # noqa: S105 (a name)
# How the process of a rank begins its name: Ray starts those of other hosts.
RANK_PROCESS = "ray::RayWorker"
# What it prints once it is up.
RUNNING = "Ray runtime started"
HELD = "the idle GPUs are held"
# For GPUs that no rank has; one that another program took through Ray is never free.
HOLD_SECONDS = 30.0
# Ray keeps up to a thousand of them.
MAX_DEAD_NODES = 20


def version() -> str | None:
    """Ray's version in this image; None where it has none."""
    try:
        return metadata.version("ray")
    except metadata.PackageNotFoundError:
        return None


def head_place(argv: Sequence[str]) -> Place | None:
    """Where the head listens for the other nodes, by the head's own command."""
    return _listens(argv, "--port")


def own_place(argv: Sequence[str]) -> Place | None:
    """Where each node listens for as long as it is one: its raylet."""
    return _listens(argv, "--node-manager-port")


def _listens(argv: Sequence[str], port: str) -> Place | None:
    address, number = option(argv, "--node-ip-address"), option(argv, port)
    return (address, int(number)) if address and number else None


def earlier_logs(argv: Sequence[str]) -> tuple[str, str] | None:
    """The folder of its logs and the pattern of its sessions: each start leaves one."""
    folder = option(argv, "--temp-dir")
    return (folder, "session_2*") if folder else None


Table = Callable[[], list[Mapping[str, object]]]
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


def _gpus(resources: object) -> float:
    return float(resources.get("GPU", 0)) if isinstance(resources, dict) else 0.0


def print_members(seconds: float) -> int:
    """Print Ray's nodes every so often until Ray does not answer; a process of its own, for what it imports."""
    table, free = node_table(os.environ["RAY_ADDRESS"])
    while True:
        left = free() if free else {}
        every = [
            {
                "id": node["NodeID"],
                "address": node["NodeManagerAddress"],
                "alive": bool(node["Alive"]),
                "gpus": _gpus(node["Resources"]),
                **({"free": _gpus(left[str(node["NodeID"])])} if node["NodeID"] in left else {}),
            }
            for node in table()
        ]
        dead = [node for node in every if not node["alive"]][-MAX_DEAD_NODES:]
        print(json.dumps({"nodes": [node for node in every if node["alive"]] + dead}), flush=True)
        time.sleep(seconds)


def hold_gpus(idle: Mapping[str, int]) -> int:
    """Take these GPUs (address → number) in Ray until this process ends; a process of its own, as Ray's drivers are."""
    ray = importlib.import_module("ray")
    groups = importlib.import_module("ray.util")
    ray.init(log_to_driver=False)
    there = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    # Of a host that is away, Ray takes them once it is back.
    held = {
        address: groups.placement_group([{"GPU": 1, f"node:{address}": 0.001}] * number, strategy="STRICT_PACK")
        for address, number in idle.items()
    }
    for address in there & held.keys():
        if not held[address].wait(HOLD_SECONDS):
            print(f"{idle[address]} GPUs of {address} are not free", flush=True)
            return 1
    print(HELD, flush=True)
    while True:
        time.sleep(3600)
