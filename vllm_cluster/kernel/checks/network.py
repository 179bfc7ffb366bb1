"""Addresses, interfaces, routes, ports and names."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from ipaddress import ip_address

from vllm_cluster.kernel.backends import joining
from vllm_cluster.kernel.checks.finding import MIN_MTU, Finding, each_host, has_node, outliers
from vllm_cluster.kernel.facts.host_facts import HostFacts, Nic
from vllm_cluster.kernel.inventory.model import Host, Inventory
from vllm_cluster.kernel.plan.desired import choose_interface, hcas
from vllm_cluster.kernel.plan.pull import container_name
from vllm_cluster.kernel.shell_line import command_line, listener_line

# Below this the ranks wait for one another at every layer; NCCL's own adapters are counted apart.
SLOW_MBIT = 10_000
FASTER = 4


def _nic(host: Host, facts: HostFacts) -> Nic | None:
    """The interface that the traffic between nodes takes."""
    return next((nic for nic in facts.nics if nic.name == choose_interface(host, facts)), None)


@each_host
def addresses(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """The host's address on one of its interfaces, and a way to each other host."""
    if not facts.nics:
        text = "`ip -j addr` prints nothing: interfaces, addresses and routes are unknown"
        yield Finding("ip-missing", host.name, text, f"on {host.name}: install iproute2 (ip of busybox has no -j)")
        return
    if facts.interface_of(host.address) is None:
        have = ", ".join(f"{a} ({nic.name})" for nic in facts.nics if nic.name != "lo" for a in nic.addresses)
        text = f"no interface holds the address {host.address}; it has {have or 'none that `ip -j addr` shows'}"
        yield Finding("address-not-found", host.name, text, f"correct hosts.{host.name}.address")
    if choose_interface(host, facts) and _nic(host, facts) is None:
        have = ", ".join(nic.name for nic in facts.nics)
        text = f"there is no interface {choose_interface(host, facts)}; it has {have}"
        yield Finding("interface-not-found", host.name, text, f"correct hosts.{host.name}.interface")
    if ip_address(host.address).is_global:
        text = f"its address {host.address} can be routed on the internet"
        fix = "a firewall that lets the cluster's hosts alone in, or a private address (SECURITY.md)"
        yield Finding("address-public", host.name, text, fix, severity="warning")
    for name, peer in inventory.hosts.items():
        if name != host.name and facts.routes.get(peer.address) is None:
            text = f"no route to {name} ({peer.address})"
            yield Finding("no-route", host.name, text, "put the addresses of both hosts on one private network")
        elif name != host.name and facts.routes.get(peer.address) == "lo":
            text = f"{peer.address}, the address of {name}, is its own"
            fix = f"correct hosts.{name}.address, or hosts.{host.name}.address"
            yield Finding("address-not-found", host.name, text, fix)


@each_host
def meeting_port(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """Where vLLM's processes meet without Ray: the port listens on every address of the head, and asks for no token."""
    if inventory.backend != "mp" or host.name != inventory.head_name or len(inventory.hosts) == 1:
        return
    found = facts.interface_of(host.address)
    nics = [nic for nic in facts.nics if nic.name not in ("lo", found.name if found else "") and not nic.inner]
    open_at = [f"{each.ip} ({nic.name})" for nic in nics for each in nic.interfaces() if not each.ip.is_link_local]
    if open_at:
        port = inventory.ports.master
        text = f"port {port} of vLLM has no token, and while a model is served it is open on {', '.join(open_at)} too"
        fix = f"a firewall that lets hosts of the cluster alone reach TCP port {port} of {host.name} (docs/engines.md)"
        yield Finding("master-port-open", host.name, text, fix, severity="warning")


@each_host
def kinds(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """An interface that is unfit for NCCL traffic."""
    nic = _nic(host, facts)
    if nic is None or len(inventory.hosts) == 1:
        return
    if nic.inner:
        text = f"{nic.name} carries NCCL traffic and is a tunnel or a container bridge ({nic.kind or 'by name'})"
        others = (f"{other.addresses[0]} ({other.name})" for other in facts.nics if other.addresses and not other.inner)
        fix = f"set hosts.{host.name}.address to that of a network card; it has {', '.join(others) or 'none'}"
        yield Finding("virtual-interface", host.name, text, fix, severity="warning")
    if nic.state in ("DOWN", "LOWERLAYERDOWN"):
        text = f"{nic.name} carries NCCL traffic and is {nic.state}"
        fix = f"on {host.name}: cable it, or {command_line('ip', 'link', 'set', nic.name, 'up')}"
        yield Finding("nic-down", host.name, text, fix, severity="warning")


def mtu(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Iterator[Finding]:
    """Interfaces whose packets are not of one size."""
    nics = {name: _nic(host, facts[name]) for name, host in inventory.hosts.items() if name in facts}
    for name, size, common, others in outliers({name: str(nic.mtu) for name, nic in nics.items() if nic and nic.mtu}):
        nic = nics[name]
        device = nic.name if nic else ""
        text = f"the MTU of {device} is {size}, that of {others}"
        if common and int(common) >= MIN_MTU:
            fix = command_line("sudo", "ip", "link", "set", device, "mtu", common, on=name)
            fix += ", for good in its configuration"
        else:
            fix = "find out which of them is right, and set that one on all hosts, for good in their configuration"
        yield Finding("mtu-differs", name, text, fix, severity="warning")


@each_host
def outgoing_interface(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """Traffic that leaves by another interface than the one that is named."""
    nic = _nic(host, facts)
    if nic is None:
        return
    # Another one may be named for NCCL alone.
    holder = facts.interface_of(host.address)
    own = {entry.network for entry in nic.interfaces()}
    twins = [
        other.name for other in facts.nics
        if other.name != nic.name and own & {entry.network for entry in other.interfaces() if not entry.is_link_local}
    ]  # fmt: skip
    if twins:
        text = f"{', '.join([nic.name, *twins])} are in one subnet: one may listen while the kernel sends by another"
        fix = f"on {host.name}: one interface a subnet, or routes by source address"
        yield Finding("nics-one-subnet", host.name, text, fix, severity="warning")
    for name, peer in inventory.hosts.items():
        way = facts.routes.get(peer.address)
        if name != host.name and holder and way not in (None, "lo", holder.name):
            text = f"traffic to {name} ({peer.address}) leaves by {way}, and {host.address} is on {holder.name}"
            fix = command_line("ip", "route", "get", peer.address, on=host.name) + "; correct addresses or routes"
            yield Finding("route-differs", host.name, text, fix, severity="warning")


def slow(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Iterator[Finding]:
    """Traffic between hosts by Wi-Fi or a slow port, and the faster one beside it that reaches all hosts."""
    wired = {
        name: {each.network for port in own.nics if not port.wireless for each in port.interfaces()}
        for name, own in facts.items()
    }
    for name, own in facts.items() if len(inventory.hosts) > 1 else ():
        host = inventory.hosts[name]
        nic = _nic(host, own)
        if nic is None or hcas(host, own):
            continue
        others = [found for other, found in wired.items() if other != name]
        faster = [(other, ip) for other in own.nics if _faster(other, nic) for ip in _meeting(other, others)]
        if not faster and not nic.wireless and not 0 < nic.speed_mbit < SLOW_MBIT:
            continue
        text = f"{nic.name} {_pace(nic)}, and no RDMA adapter is ACTIVE"
        fix = f"set hosts.{name}.address to that of a faster card, or keep TP within a host"
        if faster:
            best, ip = max(faster, key=lambda each: each[0].speed_mbit)
            text += f"; {best.name} beside it {_pace(best)}, in one subnet with every other host"
            fix = f"set hosts.{name}.address to {ip}, and those of the other hosts to their addresses in that subnet"
        yield Finding("nic-slow", name, text, fix, severity="warning")


def _pace(nic: Nic) -> str:
    wired = f"runs at {nic.speed_mbit} Mbit/s" if nic.speed_mbit else "is wired"
    return "is Wi-Fi" if nic.wireless else wired


def _faster(other: Nic, nic: Nic) -> bool:
    """Whether another interface carries traffic that much faster that it is worth a change of addresses."""
    if other.name == nic.name or other.inner or other.wireless or other.state != "UP":
        return False
    return nic.wireless or 0 < nic.speed_mbit * FASTER <= other.speed_mbit


def _meeting(nic: Nic, others: Sequence[Collection[object]]) -> Iterator[str]:
    """Addresses of this interface whose subnet is one of every other host's, by a wire."""
    for entry in nic.interfaces():
        if others and all(entry.network in networks for networks in others) and not entry.is_link_local:
            yield str(entry.ip)


@each_host
def hostname(_: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """A host whose own name resolves to a loopback address, or not at all."""
    resolves = facts.details.hostname_addresses if facts.details else None
    if resolves is None:
        return
    fix = f"in /etc/hosts of {host.name}, give its own name the address {host.address}"
    if local := [address for address in resolves if _loopback(address)]:
        text = f"hostname {facts.hostname} resolves to {', '.join(local)}"
        yield Finding("hostname-loopback", host.name, text, fix, severity="warning")
    elif not resolves:
        text = f"hostname {facts.hostname} does not resolve"
        fix = command_line("echo", f"{host.address} {facts.hostname}", on=host.name) + " | sudo tee -a /etc/hosts"
        yield Finding("hostname-unknown", host.name, text, fix, severity="warning")


def _loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


@each_host
def ports(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """Ports that something else listens on; it may be the node itself where Docker shows no containers."""
    if facts.docker.problem:
        return
    # That of a pull, too, while one runs.
    if all(container.name != container_name(inventory.cluster) for container in facts.containers):
        yield from _taken(inventory, host.name, facts, "pull")
    if has_node(inventory, facts, "running", "paused"):
        return  # the node itself listens; a paused one keeps its ports
    way = joining(inventory)
    of_head = (*way.HEAD_PORTS, *way.LOOPBACK_PORTS, "nodes", "api") if host.name == inventory.head_name else ()
    for key in (*way.NODE_PORTS, *of_head):
        yield from _taken(inventory, host.name, facts, key)
    if host.name != inventory.head_name:
        # One a replica that another host than the head leads, by its first GPU.
        for number in range(host.gpu_number or len(facts.gpus) or 1):
            yield from _taken(inventory, host.name, facts, "replicas", number)


def endpoint(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Iterator[Finding]:
    """The endpoint's port, where nodes run and no model is served: another program listens then."""
    head = inventory.head_name
    if head in facts and has_node(inventory, facts[head], "running", "paused"):
        yield from _taken(inventory, head, facts[head], "api")


def _taken(inventory: Inventory, host: str, facts: HostFacts, key: str, number: int = 0) -> Iterator[Finding]:
    port = getattr(inventory.ports, key) + number
    if port in facts.listening:
        text = f"port {port} is already in use (ports.{key}{f' + {number}' if number else ''})"
        fix = f"{listener_line(port, host)}, then stop that process, or set ports.{key}"
        # Only `serve` needs the endpoint's, and on one address; only `pull` and `serve --replicas` theirs.
        later = key in ("api", "pull", "replicas")
        yield Finding("port-in-use", host, text, fix, severity="warning" if later else "error")
