"""Serve again what was ready before what is served now."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vllm_cluster.actions.ask_head import Endpoint, ask_head, follow, look_up
from vllm_cluster.actions.assess import connect_all
from vllm_cluster.actions.consent import Confirm, Consent
from vllm_cluster.core import request
from vllm_cluster.errors import PreflightFailed
from vllm_cluster.events import Emit
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.history import ready_requests
from vllm_cluster.run.node_handle import NodeHandle
from vllm_cluster.run.runtime import SYSTEM, Runtime

_LOOPBACK = "127.0.0.1"


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
        gpus = look_up(inventory, fleet, emit).plan.gpus
        node = NodeHandle(fleet.connections[inventory.head_name], inventory.cluster)
        wanted = _before(node, inventory, gpus)
        then, names = f" and serve {wanted['name']} again", fleet.addresses
        number = ask_head(
            node, wanted, emit, verb="rollback", entry="rollback to", consent=consent, names=names, then=then, wait=wait
        )
        follow(fleet, inventory, number, wanted, emit, title=f"serving {wanted['name']} again")
    port = int(wanted.get("port", inventory.ports.api))
    return Endpoint(str(wanted["name"]), str(wanted["host"]), inventory.head_name, port)


def _before(node: NodeHandle, inventory: Inventory, gpus: Mapping[str, int]) -> dict[str, Any]:
    """The last request that was ready and is not what is served or loaded now, for the hosts as they are now."""
    serving = node.state().serving
    now = serving.generation if serving else (node.asked() or {}).get("generation")
    for found in reversed(ready_requests(node)):
        # What is served now may be it, in the layout that other hosts asked for.
        if found["generation"] != now and (fitted := _fitted(inventory, found, gpus))["generation"] != now:
            return fitted
    text = f"{node.host}: rollback: no earlier request was ready"
    raise PreflightFailed(text, hint="vcluster status --history\nvcluster serve MODEL")


def _fitted(inventory: Inventory, found: Mapping[str, Any], gpus: Mapping[str, int]) -> dict[str, Any]:
    """The request for the hosts as they are now."""
    asked = {key: value for key, value in found.items() if key != "ready_at"}
    address = inventory.hosts[inventory.head_name].address
    here = _LOOPBACK if asked["host"] == _LOOPBACK else address
    names = {host.address: name for name, host in inventory.hosts.items()}
    followed = request.follow(request.written(asked, None), request.ChangedCluster(gpus, (asked["host"], here), names))
    if followed is None:
        return {**asked, "nodes": dict(gpus)}
    serve: dict[str, Any] | None = json.loads(followed.content)["serve"]
    if serve is None:
        raise PreflightFailed(followed.text, hint="vcluster serve MODEL --tp NUMBER --pp NUMBER")
    return serve
