"""What was done to a cluster, by whom, and what became of each request to serve."""

from __future__ import annotations

from vllm_cluster.kernel.hosts.connection import Fleet
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.handle import open_node
from vllm_cluster.kernel.node.history import read_history
from vllm_cluster.kernel.plan.history import Entry


def history(inventory: Inventory, *, runtime: Runtime = SYSTEM) -> list[Entry]:
    """The entries that the head keeps, the oldest first; also of a head that does not run.

    Raises:
        PreflightFailed: there is no node of this cluster on the head.
        Unreachable: the head cannot be reached.
    """
    with Fleet(inventory, runtime, [inventory.head_name]) as fleet:
        return read_history(open_node(inventory, fleet.connections[inventory.head_name]))
