"""Find what is served under a name: the model and its layout."""

from __future__ import annotations

from pathlib import Path

from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.handle import open_node
from vllm_cluster.kernel.plan.placement import summary
from vllm_cluster.kernel.shell_line import last_value
from vllm_cluster.kernel.text import number_of
from vllm_cluster.serving.head import at_head
from vllm_cluster.serving.others import order_in_force
from vllm_cluster.wire.order import Deployment


def served_as(name: str, inventory: Inventory, emit: Emit, *, runtime: Runtime = SYSTEM) -> Deployment | None:
    """Find what is served under a name; None where none is, or where it can only be a model: ORG/MODEL, or a path."""
    if "/" in name or Path(name).exists():
        return None
    try:
        with at_head(inventory, runtime) as head:
            rows = order_in_force(open_node(inventory, head)).named(name)
    except VclusterError:
        # A cluster need not be up for a model to be judged.
        return None
    if not rows:
        return None
    addresses = {host.address: called for called, host in inventory.hosts.items()}
    emit(Event("note", f"{name} is served: {summary(rows[0], addresses)}"))
    return rows[0].deployment


def context_of(deployment: Deployment) -> int:
    """The context that its flags ask for; 0 where none does, or not as a number."""
    return number_of(last_value(deployment.flags, "--max-model-len") or "") or 0


def kv_cache_dtype_of(deployment: Deployment) -> str:
    """The type of the KV cache that its flags ask for; `auto` where none does."""
    return last_value(deployment.flags, "--kv-cache-dtype") or "auto"
