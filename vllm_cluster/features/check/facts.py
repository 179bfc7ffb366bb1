"""What the hosts are, for people and programs."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_cluster.kernel.assess import require_name
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.observe import observe
from vllm_cluster.kernel.hosts.reach import connect_all
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.text import count


def facts(inventory: Inventory, names: Sequence[str], emit: Emit) -> dict[str, HostFacts]:
    """The facts of these hosts, or of all, with their details. Changes nothing.

    Raises:
        VclusterError: there is no such host, or one cannot be reached or looked at.
    """
    require_name(inventory, list(names))
    with connect_all(inventory, emit, names or None) as fleet:
        emit(Event("phase", f"inspecting {count(len(names or fleet.names), 'host')}"))
        return fleet.all(lambda connection: observe(inventory, connection, deep=True), names or None)
