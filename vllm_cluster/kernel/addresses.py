"""Asks the hosts for the addresses that the inventory does not name."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network

from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.observe import run_fact_script
from vllm_cluster.kernel.hosts.reach import connect_all
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Host, Inventory
from vllm_cluster.kernel.inventory.problems import Problem, as_error, file_name


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
            facts = fleet.all(lambda connection: run_fact_script(inventory, connection), hosts)
    except HostError as error:
        error.hint = "\n".join(filter(None, (error.hint, f"write hosts.{error.host}.address into the inventory")))
        raise
    found = with_addresses(inventory, facts)
    for name in hosts:
        address = found.hosts[name].address
        interface = private_addresses(inventory.hosts[name], facts[name])[address]
        emit(Event("note", f"{name}: address {address} ({interface}), its only private one"))
    # This is over: what follows may run without end, and without events.
    emit(Event("phase", ""))
    return found


# RFC 1918. Python's own is_private has networks of documentation too, and others in each version.
PRIVATE = tuple(map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
WRITE = "write its IP address on the network between the hosts"


def private_addresses(host: Host, facts: HostFacts) -> dict[str, str]:
    """The private IPv4 addresses of the host's network cards, each with its interface; where one is named, its own."""
    return {
        str(entry.ip): nic.name
        for nic in facts.nics
        if not nic.inner and nic.name == (host.interface or nic.name)
        for entry in nic.interfaces()
        if any(entry.version == 4 and entry.ip in network for network in PRIVATE)
    }


def with_addresses(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Inventory:
    """The inventory, each host that names no address with its only private one.

    Raises:
        InventoryError: a host has none or several, or the one of another host.
    """
    found = {name: private_addresses(inventory.hosts[name], seen) for name, seen in facts.items()}
    hosts = {
        name: host if host.address else host.model_copy(update={"address": next(iter(found[name]), "")})
        for name, host in inventory.hosts.items()
    }
    problems = []
    for name, addresses in found.items():
        others = [other for other, host in hosts.items() if other != name and host.address == hosts[name].address]
        if text := _problem(name, addresses, others):
            problems.append(Problem(hosts[name].line or 1, ("hosts", name, "address"), f"is missing, and {text}"))
    if problems:
        raise as_error(problems, file_name(inventory.path))
    return inventory.model_copy(update={"hosts": hosts})


def _problem(name: str, addresses: Mapping[str, str], others: list[str]) -> str | None:
    if not addresses:
        return f"{name} has no private address: {WRITE}"
    have = ", ".join(f"{address} ({nic})" for address, nic in addresses.items())
    if len(addresses) > 1:
        return f"{name} has {len(addresses)} private addresses, {have}: {WRITE}"
    return f"that of {name}, {have}, is also the address of hosts.{others[0]}: {WRITE}" if others else None
