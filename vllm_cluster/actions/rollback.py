"""Serve again what was ready before what is served now."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vllm_cluster.actions.assess import assess, connect_all
from vllm_cluster.actions.consent import Confirm, Consent
from vllm_cluster.actions.follow import Follower, continues_on_interrupt
from vllm_cluster.actions.serve import Endpoint, ask_head, require_up
from vllm_cluster.core import request
from vllm_cluster.errors import PreflightFailed
from vllm_cluster.events import Emit, Event
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run import serve_request
from vllm_cluster.run.connection import HostConnection
from vllm_cluster.run.history import ready_requests
from vllm_cluster.run.node_handle import NodeHandle
from vllm_cluster.run.runtime import SYSTEM, Runtime
from vllm_cluster.run.secrets import Reading

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
    with connect_all(inventory, emit, runtime=runtime) as fleet:
        seen = assess(inventory, fleet, emit, reading=Reading.NONE)
        require_up(seen.plan)
        head = fleet.connections[inventory.head_name]
        wanted = _fitted(inventory, _before(inventory, head), seen.plan.gpus)
        name = str(wanted["name"])
        consent = Consent(confirm, inventory.cluster, then=f" and serve {name} again")
        number = ask_head(inventory, head, wanted, consent, wait=wait, emit=emit, what="rollback to")
        emit(Event("phase", f"serving {name} again"))
        with continues_on_interrupt(inventory.cluster, name):
            Follower(fleet, inventory, number, emit, asked=wanted).follow()
        return Endpoint(name, str(wanted["host"]), head.name, int(wanted.get("port", inventory.ports.api)))


def _before(inventory: Inventory, head: HostConnection) -> dict[str, Any]:
    """The last request that was ready and is not what is served or loaded now."""
    node = NodeHandle(head, inventory.cluster)
    serving = node.state().serving
    asked = (serve_request.read(node) or {}).get("serve")
    wanted = asked.get("generation") if isinstance(asked, Mapping) else None
    now = serving.generation if serving else wanted
    for found in reversed(ready_requests(node)):
        if found["generation"] != now:
            return dict(found)
    text = f"{head.name}: rollback: no earlier request was ready"
    raise PreflightFailed(text, hint="vcluster history\nvcluster serve MODEL")


def _fitted(inventory: Inventory, found: Mapping[str, Any], gpus: Mapping[str, int]) -> dict[str, Any]:
    """The request for the hosts as they are now."""
    asked = {key: value for key, value in found.items() if key != "ready_at"}
    address = inventory.hosts[inventory.head_name].address
    here = _LOOPBACK if asked["host"] == _LOOPBACK else address
    followed = request.follow(request.written(asked, None), gpus, (asked["host"], here))
    if followed is None:
        return {**asked, "nodes": dict(gpus)}
    serve: dict[str, Any] | None = json.loads(followed.content)["serve"]
    if serve is None:
        raise PreflightFailed(followed.text, hint="vcluster serve MODEL --tp NUMBER --pp NUMBER")
    return serve
