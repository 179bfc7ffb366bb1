"""Which port the traffic between hosts takes, and which hosts their adapters join."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tests.support import world
from vllm_cluster.kernel.checks import network, rdma
from vllm_cluster.kernel.facts.host_facts import Hca, HostFacts, Nic


def joined(*names: str, slow: Nic, fast: Nic | None) -> dict[str, HostFacts]:
    """Hosts that were given `slow`, with `fast` beside it, each with addresses of its own."""
    found = {}
    for at, name in enumerate(names, 1):
        own = replace(slow, addresses=(f"10.0.0.{at}/24",))
        beside = (replace(fast, addresses=(fast.addresses[0].replace("@", str(at)),)),) if fast else ()
        found[name] = replace(world.host(at), nics=(own, *beside))
    return found


FAST = Nic("eth9", ("10.9.0.@/24",), 9000, "UP", speed_mbit=100_000)


# fault: kernel/checks/network.py: return nic.wireless or → return
# fault: kernel/checks/network.py: if others and all(entry.network in networks for networks in others) and → if
@pytest.mark.parametrize(
    ("slow", "fast", "fix"),
    [
        (Nic("wlP9s9", (), 1500, "UP"), FAST, "set hosts.gpu1.address to 10.9.0.1, "),
        (Nic("wlan0", (), 1500, "UP"), replace(FAST, speed_mbit=0), "set hosts.gpu1.address to 10.9.0.1, "),
        (Nic("eth0", (), 1500, "UP", speed_mbit=1000), FAST, "set hosts.gpu1.address to 10.9.0.1, "),
        (Nic("eth0", (), 1500, "UP", speed_mbit=25_000), FAST, "set hosts.gpu1.address to 10.9.0.1, "),
        (Nic("wlan0", (), 1500, "UP"), None, "set hosts.gpu1.address to that of a faster card"),
        (Nic("wlan0", (), 1500, "UP"), replace(FAST, state="DOWN"), "set hosts.gpu1.address to that of a faster"),
        (Nic("wlan0", (), 1500, "UP"), replace(FAST, addresses=("10.@.0.1/24",)), "set hosts.gpu1.address to that of"),
        (Nic("eth0", (), 1500, "UP", speed_mbit=50_000), FAST, ""),
        (Nic("eth0", (), 1500, "UP"), FAST, ""),
    ],
)
def test_the_faster_port_is_named_where_it_reaches_all_hosts(slow: Nic, fast: Nic | None, fix: str) -> None:
    found = list(network.slow(world.inventory(), joined("gpu1", "gpu2", slow=slow, fast=fast)))
    assert [(one.code, one.host) for one in found] == ([("nic-slow", "gpu1"), ("nic-slow", "gpu2")] if fix else [])
    assert not fix or found[0].fix.startswith(fix)


# fault: kernel/checks/network.py: entry.network in networks for → any(entry.network == one for one in networks) for
def test_many_addresses_of_two_hosts_take_no_time() -> None:
    """1,000 of each took 31 s, and a host may claim 28,000."""
    many = tuple(f"10.{high}.{low}.1/24" for high in range(10, 26) for low in range(250))
    slow, fast = Nic("wlan0", (), 1500, "UP"), Nic("eth9", many, 9000, "UP", speed_mbit=1)
    found = {name: replace(world.host(at), nics=(slow, fast)) for at, name in enumerate(("gpu1", "gpu2"), 1)}
    found["gpu2"] = replace(found["gpu2"], nics=(slow, replace(fast, addresses=tuple(reversed(many)))))
    for name, host in found.items():
        own = replace(slow, addresses=(f"{world.inventory().hosts[name].address}/32",))
        found[name] = replace(host, nics=(own, *host.nics[1:]))
    began = time.process_time()
    assert [one.code for one in network.slow(world.inventory(), found)] == ["nic-slow", "nic-slow"]
    assert time.process_time() - began < 3


def ring(*subnets: tuple[int, ...], layer: str = "Ethernet") -> dict[str, HostFacts]:
    """Hosts with an adapter in each of these subnets."""
    found = {}
    for at, numbers in enumerate(subnets, 1):
        nics = tuple(Nic(f"eth{one}", (f"10.{one}.0.{at}/24",), 9000, "UP") for one in numbers)
        ports = [
            Hca(f"mlx5_{one}", 1, "4: ACTIVE", layer, "200 Gb/sec", ("/dev/infiniband/uverbs0",), (f"eth{one}",))
            for one in numbers
        ]
        found[f"gpu{at}"] = replace(world.host(at), nics=(*world.host(at).nics, *nics), hcas=tuple(ports))
    return found


# fault: kernel/checks/rdma.py: if met and (lone → if (lone
# fault: kernel/checks/rdma.py: if hca.link_layer == "Ethernet" for device → for device
@pytest.mark.parametrize(
    ("facts", "named"),
    [
        (ring((1, 2), (2, 3), (3, 4), (4, 1)), ["gpu1", "gpu2"]),
        (ring((1, 2), (2, 3), (3, 1)), []),
        (ring((1,), (1,), (1,)), []),
        # Every host in a subnet of its own is a network with routers.
        (ring((1,), (2,), (3,)), []),
        (ring((1, 2), (2, 3), (3, 4), (4, 1), layer="InfiniBand"), []),
    ],
)
def test_adapters_that_meet_only_their_neighbours_are_found(facts: dict[str, HostFacts], named: list[str]) -> None:
    found = list(rdma.apart(world.inventory(len(facts)), facts))
    assert [(one.code, one.host) for one in found] == [("hcas-apart", name) for name in named]
