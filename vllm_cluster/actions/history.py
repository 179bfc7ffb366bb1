"""What was done to a cluster, by whom, and what became of each request to serve."""

from __future__ import annotations

from vllm_cluster.actions.assess import ensure_no_errors
from vllm_cluster.checks.docker import foreign
from vllm_cluster.core.history import Entry
from vllm_cluster.core.identity import node_of
from vllm_cluster.errors import PreflightFailed
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.connection import Fleet
from vllm_cluster.run.history import read_history
from vllm_cluster.run.node_handle import NodeHandle
from vllm_cluster.run.observe import observe
from vllm_cluster.run.runtime import SYSTEM, Runtime


def history(inventory: Inventory, *, runtime: Runtime = SYSTEM) -> list[Entry]:
    """The entries that the head keeps, the oldest first; also of a head that does not run.

    Raises:
        PreflightFailed: there is no node of this cluster on the head.
        Unreachable: the head cannot be reached.
    """
    with Fleet(inventory, runtime) as fleet:
        _, failures = fleet.connect([inventory.head_name])
        for error in failures.values():
            raise error
        head = fleet.connections[inventory.head_name]
        facts = observe(inventory, head)
        ensure_no_errors(list(foreign(inventory, {head.name: facts})))
        if node_of(inventory.cluster, facts) is None:
            text = f"{head.name}: history: cluster {inventory.cluster} is not up; vcluster down deletes its history"
            raise PreflightFailed(text, hint="vcluster up")
        return read_history(NodeHandle(head, inventory.cluster))
