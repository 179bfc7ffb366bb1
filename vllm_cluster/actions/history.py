"""What was done to a cluster, by whom, and what became of each request to serve."""

from __future__ import annotations

from vllm_cluster.actions.assess import ensure_no_errors
from vllm_cluster.actions.head import at_head
from vllm_cluster.checks.docker import foreign
from vllm_cluster.core.history import Entry
from vllm_cluster.core.identity import node_of
from vllm_cluster.errors import PreflightFailed
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.history import read_history
from vllm_cluster.run.node_handle import NodeHandle
from vllm_cluster.run.observe import observe, usable
from vllm_cluster.run.runtime import SYSTEM, Runtime


def history(inventory: Inventory, *, runtime: Runtime = SYSTEM) -> list[Entry]:
    """The entries that the head keeps, the oldest first; also of a head that does not run.

    Raises:
        PreflightFailed: there is no node of this cluster on the head.
        Unreachable: the head cannot be reached.
    """
    with at_head(inventory, runtime) as head:
        facts = usable(observe(inventory, head))
        ensure_no_errors(list(foreign(inventory, {head.name: facts})))
        if node_of(inventory.cluster, facts) is None:
            text = f"{head.name}: history: cluster {inventory.cluster} is not up; vcluster down deletes its history"
            raise PreflightFailed(text, hint="vcluster up")
        return read_history(NodeHandle(head, inventory.cluster))
