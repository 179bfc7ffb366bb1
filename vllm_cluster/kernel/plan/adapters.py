"""Which InfiniBand and RoCE ports NCCL may use: those that belong to the GPUs, and not those that carry storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllm_cluster.kernel.facts.host_facts import Gpu, Hca, HostFacts

if TYPE_CHECKING:
    from vllm_cluster.kernel.inventory.model import Host

INFINIBAND, ETHERNET = "InfiniBand", "Ethernet"
# An IPv4 address as a GID writes it.
_IPV4 = "0000:0000:0000:0000:0000:ffff:"


def used(host: Host, facts: HostFacts, gpus: Sequence[Gpu]) -> tuple[Hca, ...]:
    """The ACTIVE ports of the named devices; without names those of one kind and the highest rate, near the GPUs."""
    active = _active(facts)
    if host.hcas is not None:
        return tuple(port for port in active if port.device in host.hcas)
    if not active:
        return ()
    best = max(active, key=_rank)
    return _near(tuple(port for port in active if _rank(port) == _rank(best)), gpus)


def left_out(host: Host, facts: HostFacts, gpus: Sequence[Gpu]) -> list[tuple[Hca, str]]:
    """The ACTIVE ports that are not used though no list names others, each with why."""
    chosen = used(host, facts, gpus)
    if host.hcas is not None or not chosen:
        return []
    best = chosen[0]
    return [(port, _why(port, best)) for port in _active(facts) if port not in chosen]


def _why(port: Hca, best: Hca) -> str:
    if gigabits(port.rate) != gigabits(best.rate):
        return f"{gigabits(port.rate):g} Gb/s, slower"
    return f"{port.link_layer}, another kind" if port.link_layer != best.link_layer else "farther from the GPUs"


def gid_index(ports: Sequence[Hca], facts: HostFacts) -> int | None:
    """The number under which all RoCE ports have an IPv4 address of RoCE v2; None where there is no such number."""
    common: set[int] | None = None
    for port in ports:
        if port.link_layer == ETHERNET:
            right = {
                gid.index
                for gid in facts.gids
                if (gid.device, gid.port) == (port.device, port.port)
                and "v2" in gid.kind
                and gid.address.startswith(_IPV4)
            }
            common = right if common is None else common & right
    return min(common) if common else None


def gigabits(rate: str) -> float:
    """The number in sysfs' words: `400 Gb/sec (4X NDR)`."""
    number = rate.split(" ", maxsplit=1)[0]
    return float(number) if number.replace(".", "", 1).isdecimal() else 0.0


def _active(facts: HostFacts) -> tuple[Hca, ...]:
    return tuple(port for port in facts.hcas if port.active and port.uverbs)


def _rank(port: Hca) -> tuple[float, bool]:
    return gigabits(port.rate), port.link_layer == INFINIBAND


def _near(ports: tuple[Hca, ...], gpus: Sequence[Gpu]) -> tuple[Hca, ...]:
    """The nearest ports of each GPU; all where their distance is unknown."""
    near: set[Hca] = set()
    for gpu in gpus:
        ways = {port: _closeness(port, gpu) for port in ports}
        near |= {port for port, close in ways.items() if close == max(ways.values())}
    return tuple(port for port in ports if port in near) if near else ports


def _closeness(port: Hca, gpu: Gpu) -> tuple[int, bool]:
    """How many bridges they share, and whether they are on one side of the machine."""
    shared = 0
    for one, other in zip(port.pci_path.split("/")[:-1], gpu.pci_path.split("/")[:-1], strict=False):
        if one != other or not one:
            break
        shared += 1
    return shared, port.numa is not None and port.numa == gpu.numa
