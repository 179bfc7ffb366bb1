"""Asks the hosts for the addresses that the inventory does not name."""

from __future__ import annotations

from vllm_cluster.actions.assess import connect_all
from vllm_cluster.core.addresses import private_addresses, with_addresses
from vllm_cluster.errors import HostError
from vllm_cluster.events import Emit, Event
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.observe import ask
from vllm_cluster.run.runtime import SYSTEM, Runtime


def find_addresses(inventory: Inventory, emit: Emit, *, runtime: Runtime = SYSTEM) -> Inventory:
    """The inventory with an address for every host; no host is asked where all are named.

    Raises:
        InventoryError: a host has no private address, several, or that of another host.
        Unreachable, FleetError: a host without an address could not be reached.
    """
    hosts = [name for name, host in inventory.hosts.items() if not host.address]
    if not hosts:
        return inventory
    try:
        with connect_all(inventory, emit, hosts, runtime=runtime) as fleet:
            facts = fleet.all(lambda connection: ask(inventory, connection), hosts)
    except HostError as error:
        error.hint = "\n".join(filter(None, (error.hint, f"write hosts.{error.host}.address into the inventory")))
        raise
    found = with_addresses(inventory, facts)
    for name in hosts:
        address = found.hosts[name].address
        interface = private_addresses(inventory.hosts[name], facts[name])[address]
        emit(Event("note", f"{name}: address {address} ({interface}), its only private one"))
    return found
