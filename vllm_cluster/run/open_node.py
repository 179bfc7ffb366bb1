"""Connects to a host for a verb that looks into this cluster's node there."""

from __future__ import annotations

from vllm_cluster.checks.docker import foreign
from vllm_cluster.core.identity import node_of
from vllm_cluster.errors import NodeMissing, PreflightFailed
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.connection import HostConnection
from vllm_cluster.run.logs import connect_and_observe
from vllm_cluster.run.node_handle import NodeHandle


def open_node(inventory: Inventory, connection: HostConnection) -> NodeHandle:
    """The node of this cluster on a host, which is connected for it; the node may have stopped.

    Raises:
        HostError: the host or its Docker does not answer.
        NodeMissing: there is no such node.
        PreflightFailed: it is of another cluster.
    """
    facts = connect_and_observe(inventory, connection)
    for finding in foreign(inventory, {connection.name: facts}):
        raise PreflightFailed(f"{finding.host}: {finding.message}", hint=finding.fix)
    if node_of(inventory.cluster, facts) is None:
        raise NodeMissing(f"{connection.name}: the node is missing", hint="vcluster up")
    return NodeHandle(connection, inventory.cluster)
