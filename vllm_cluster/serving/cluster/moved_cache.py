"""A model cache that the inventory has moved: what is served, and is not in the new one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.models.cache import sees_cache
from vllm_cluster.kernel.models.host_cache import cached
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.plan.cached_model import pull_line
from vllm_cluster.kernel.plan.identity import authority, node_of
from vllm_cluster.kernel.plan.spec import ROLE
from vllm_cluster.kernel.text import by_hosts
from vllm_cluster.wire.order import Deployment
from vllm_cluster.wire.reading import RefusedDocument

# Of a warning, for which the lease may be held; of a host that takes longer it is not known.
LOOK_SECONDS = 30.0


def absent_models(inventory: Inventory, facts: Mapping[str, HostFacts], fleet: Fleet) -> str:
    """What is served, and where it is not in the cache that its nodes get; empty where it is, or that is not known.

    A host whose node has that cache already is not asked: there the model was looked for when it was asked for.
    """
    nodes = {name: node_of(inventory.cluster, facts[name]) for name in inventory.hosts}
    moved = [name for name, node in nodes.items() if node and not sees_cache(node, inventory.model_cache)]
    wanted = _wanted(inventory, facts, fleet) if moved else ()
    if not wanted:
        return ""

    def look(connection: HostConnection) -> set[str]:
        models = connection.once("models", lambda: cached(inventory, connection, LOOK_SECONDS))
        return {one.name for one in models if not one.problem}

    held, _ = fleet.each(look, moved)
    lacking = by_hosts(
        (one.model, host)
        for one in wanted
        for host, names in held.items()
        if one.model not in names and host in (one.hosts or inventory.hosts)
    )
    return "; ".join(
        f"{model} is not in {inventory.model_cache} of {hosts}: first {_remedy(model)}"
        for model, hosts in lacking.items()
    )


def _remedy(model: str) -> str:
    """What brings a model; of a folder it is not known here where it comes from."""
    return pull_line(model) or "bring it there"


def _wanted(inventory: Inventory, facts: Mapping[str, HostFacts], fleet: Fleet) -> tuple[Deployment, ...]:
    """What the head of now is asked to serve; none where that cannot be read."""
    for host in authority(inventory, facts).heads:
        node = node_of(inventory.cluster, facts[host])
        if node and node.labels.get(ROLE) == "head":
            with suppress(HostError, RefusedDocument):
                order = NodeHandle(fleet.connections[host], inventory.cluster).order()
                return tuple(one.deployment for one in order.deployments) if order else ()
    return ()
