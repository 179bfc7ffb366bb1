"""Serve again what was ready before what is served now."""

from __future__ import annotations

from functools import partial

from vllm_cluster.kernel.assess import connect_all
from vllm_cluster.kernel.errors import PreflightFailed, UsageError
from vllm_cluster.kernel.events import Emit
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.node.history import ready_requests
from vllm_cluster.kernel.plan.followed import fitted
from vllm_cluster.kernel.plan.placement import Cluster, place_replicas
from vllm_cluster.serving.ask_head import Endpoint, ask_head, follow, look_up
from vllm_cluster.serving.consent import Confirm, Consent
from vllm_cluster.wire.order import Placement


def rollback(
    inventory: Inventory, emit: Emit, *, confirm: Confirm, wait: float = 0.0, runtime: Runtime = SYSTEM
) -> Endpoint:
    """Serve the last ready request before the current one; returns once it has generated a token.

    Raises:
        Aborted, UsageError: a model is served, and its stop was not confirmed.
        PreflightFailed: the cluster is not up, there is nothing to go back to, or it needs more GPUs than there are.
        HostError: as `serve`.
    """
    consent = Consent(confirm, inventory.cluster)
    with connect_all(inventory, emit, runtime=runtime) as fleet:
        gpus, names = look_up(inventory, fleet, emit).plan.gpus, fleet.addresses
        node = NodeHandle(fleet.connections[inventory.head_name], inventory.cluster)
        wanted = _before(node, Cluster.of(inventory, gpus))
        name, replica = wanted[0].deployment.name, wanted[0].replica
        asks = partial(
            ask_head, verb="rollback", entry="rollback to", consent=consent, names=names, gpus=gpus, wait=wait
        )
        number = asks(node, wanted, emit, then=f" and serve {name} again")
        follow(fleet, inventory, number, wanted, emit, title=f"serving {name} again")
    return Endpoint(name, replica.host, inventory.head_name, replica.port)


def _before(node: NodeHandle, cluster: Cluster) -> tuple[Placement, ...]:
    """What was ready last and is not what is served or loaded now, for the hosts as they are now.

    Raises:
        PreflightFailed: there is none, or the hosts cannot carry it.
    """
    serving, asked = node.state().serving, node.asked()
    now = serving.generation if serving else asked.generation if asked else ""
    for found in reversed(ready_requests(node)):
        # What is served now may be it, in the layout that other hosts asked for.
        if found.generation != now and (there := _fitted(found, cluster))[0].generation != now:
            return there
    text = f"{node.host}: rollback: no earlier request was ready"
    raise PreflightFailed(text, hint="vcluster status --history\nvcluster serve MODEL")


def _fitted(found: Placement, cluster: Cluster) -> tuple[Placement, ...]:
    before = found.replica
    try:
        if found.deployment.replicas == 1:
            return (fitted(found, cluster),)
        how = partial(place_replicas, loading=before.loading, offline=before.offline)
        return how(cluster.renamed(found.deployment), cluster, (before.tp, before.pp), before.port)
    except UsageError as error:
        hint = "vcluster serve MODEL --tp NUMBER --pp NUMBER"
        raise PreflightFailed(f"{found.deployment.name} is not served any more: {error.message}", hint=hint) from error
