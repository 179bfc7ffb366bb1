"""InfiniBand and RoCE: adapters, their devices and what keeps GPUs from using them directly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import IPv4Network, IPv6Network

from vllm_cluster.kernel.checks.finding import Finding, Severity, each_host, has_node, outliers
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.inventory.model import Host, Inventory
from vllm_cluster.kernel.plan import gpus
from vllm_cluster.kernel.plan.adapters import left_out
from vllm_cluster.kernel.plan.desired import hcas


@each_host
def named(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """The adapters that the inventory names."""
    for device in host.hcas or ():
        ports = [hca for hca in facts.hcas if hca.device == device]
        if not any(port.active for port in ports):
            state = ports[0].state if ports else "not there"
            fix = f"correct hosts.{host.name}.hcas, or cable it"
            # A node that runs was made with it, and stays.
            severity: Severity = "warning" if has_node(inventory, facts, "running") else "error"
            yield Finding("hca-inactive", host.name, f"{device} is {state}", fix, severity)


@each_host
def devices(_: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """The device files that the container will be given."""
    used = hcas(host, facts)
    wanted = {"/dev/infiniband/rdma_cm", *(device for hca in used for device in hca.uverbs)}
    lacking = sorted(wanted - set(facts.rdma_devices))
    if used and lacking:
        text = f"{used[0].device} is ACTIVE, but {', '.join(lacking)} does not exist"
        fix = f"on {host.name}: sudo modprobe -a rdma_ucm ib_uverbs, or set hosts.{host.name}.hcas to []"
        yield Finding("rdma-device-missing", host.name, text, fix)


@each_host
def idle(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """Adapters that are there and carry nothing."""
    if facts.hcas and host.hcas is None and len(inventory.hosts) > 1 and not hcas(host, facts):
        states = ", ".join(f"{hca.device} port {hca.port} is {hca.state}" for hca in facts.hcas[:4])
        text = f"no HCA is ACTIVE, so NCCL uses TCP: {states}"
        fix = f"on {host.name}: cable it; InfiniBand needs a subnet manager: ibstat"
        yield Finding("hca-idle", host.name, text, fix, severity="warning")


@each_host
def unused(_: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """Adapters that carry traffic and are left to others: storage has its own."""
    if rest := left_out(host, facts, gpus.chosen(host, facts)):
        names = "; ".join(f"{port.device} ({why})" for port, why in rest)
        text = f"NCCL does not use every ACTIVE HCA: {names}"
        fix = f"to use others, name the devices in hosts.{host.name}.hcas"
        yield Finding("hca-excluded", host.name, text, fix, severity="warning")


def alike(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Iterator[Finding]:
    """Hosts whose adapters do not match: a ring runs at the pace, and over the kind, of the least."""
    kinds = {}
    for name in facts:
        used = hcas(inventory.hosts[name], facts[name])
        words = sorted({f"{hca.link_layer} at {hca.rate}" for hca in used})
        kinds[name] = f"{len(used)} ({', '.join(words)})" if used else "none"
    for name, kind, _, others in outliers(kinds):
        text = f"ACTIVE HCAs: {kind}; those of {others}"
        fix = f"on {name}: ibstat; or name the same kind everywhere with hosts.{name}.hcas"
        yield Finding("hcas-differ", name, text, fix, severity="warning")


def apart(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Iterator[Finding]:
    """Ethernet adapters that meet those of some hosts and not of others, as where cables join hosts to a ring."""
    subnets = {name: found for name, own in facts.items() if (found := _subnets(inventory.hosts[name], own))}
    names = list(subnets)
    for at, name in enumerate(names):
        met = [peer for peer in names if peer != name and subnets[peer] & subnets[name]]
        # Of two hosts that do not meet the first is named.
        if met and (lone := [peer for peer in names[at + 1 :] if peer not in met]):
            text = f"its ACTIVE HCAs share a subnet with those of {', '.join(met)}, and none with {', '.join(lone)}"
            fix = "a switch, or a router between the subnets; else set hcas to [] on every host: NCCL then uses TCP"
            yield Finding("hcas-apart", name, text, fix, severity="warning")


def _subnets(host: Host, facts: HostFacts) -> set[IPv4Network | IPv6Network]:
    """Those of the interfaces that belong to the host's Ethernet adapters."""
    devices = {device for hca in hcas(host, facts) if hca.link_layer == "Ethernet" for device in hca.netdevs}
    entries = [entry for nic in facts.nics if nic.name in devices for entry in nic.interfaces()]
    return {entry.network for entry in entries if not entry.is_link_local}


@each_host
def direct(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """What keeps an adapter from reaching a GPU's memory."""
    details = facts.details
    if details is None or inventory.accelerator != "nvidia" or not (facts.gpus and hcas(host, facts)):
        return
    if not details.peermem and not details.open_driver:
        text = "nvidia_peermem is not loaded, and the driver is not the open one, which needs no module (DMA-BUF)"
        yield Finding("peermem", host.name, text, f"on {host.name}: sudo modprobe nvidia_peermem", severity="warning")
    if details.iommu.startswith("DMA"):
        text = f"the IOMMU translates every access ({details.iommu})"
        fix = f"on {host.name}: add iommu=pt to the command line of the kernel and reboot"
        yield Finding("iommu-translates", host.name, text, fix, severity="warning")
    if details.acs_enabled:
        text = "PCI ACS sends traffic between GPU and HCA through the CPU"
        fix = f"on {host.name}: turn ACS off in the firmware, or with setpci on each bridge at boot"
        yield Finding("acs", host.name, text, fix, severity="warning")


@each_host
def rules(_: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """What RDMA needs beside adapters: routable addresses on Ethernet, and memory that may be locked."""
    used = hcas(host, facts)
    if used and facts.docker.rootless:
        text = f"Docker runs without root and may not lift the limit of locked memory ({_limit(facts)})"
        fix = f"on {host.name}: use the Docker of the system, or raise LimitMEMLOCK of the service of this user"
        yield Finding("memlock-limited", host.name, text, fix, severity="warning")
    routable = {(gid.device, gid.port) for gid in facts.gids if "v2" in gid.kind}
    for hca in used if facts.details else ():
        if hca.link_layer == "Ethernet" and (hca.device, hca.port) not in routable:
            text = f"{hca.device} port {hca.port} is Ethernet and has no RoCE v2 address"
            fix = f"on {host.name}: give {', '.join(hca.netdevs) or 'its interface'} an IP address: show_gids"
            yield Finding("roce-address-missing", host.name, text, fix, severity="warning")


def _limit(facts: HostFacts) -> str:
    return facts.details.docker_memlock if facts.details and facts.details.docker_memlock else "unknown"
