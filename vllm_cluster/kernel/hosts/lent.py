"""Hosts that a job lends: for how long they are still there."""

from __future__ import annotations

from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.hosts.runtime import Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.text import age

# Earlier it is a note: a job that ends tomorrow is not a problem now.
SOON = 3600.0


def show_end(inventory: Inventory, emit: Emit, runtime: Runtime) -> None:
    """Show when the job that lent the hosts ends, which no container there sees."""
    if inventory.lent_until is not None:
        left = max(0.0, inventory.lent_until - runtime.clock.time())
        text = f"the job that lent these hosts ends in {age(left)}; containers outlive it: run vcluster down before"
        emit(Event("warning" if left < SOON else "note", text))
