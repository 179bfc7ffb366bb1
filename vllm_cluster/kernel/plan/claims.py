"""Which hosts have what a head has: the inventory's head, and others that were it, are to be it, or only claim so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_cluster.kernel.facts.docker_objects import Container
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.plan.identity import Authority, authority, is_head, node_of
from vllm_cluster.kernel.plan.kept import Holder, holders_on
from vllm_cluster.kernel.plan.spec import HEAD_ADDRESS, ID

if TYPE_CHECKING:
    from vllm_cluster.kernel.inventory.model import Inventory

# Of a host: each is read through a container, with the lease, and how many it lists is its own word.
KEY, MAX_VOLUMES = "api-key", 3


@dataclass(frozen=True)
class Claim:
    """A host that has what a head has, by its own labels: its node, or what holds the API key.

    `trusted` is one from which `up` takes the key and what is served. `known` is what this machine remembers of it: 4
    that it made it the head, 3 that it found it so, 2 that it was the head before, 1 that a move there began, and 0
    nothing. `named_by` are the other hosts whose nodes name it as their head.
    """

    host: str
    runs: bool
    trusted: bool
    known: int
    named_by: tuple[str, ...]
    holders: tuple[Holder, ...]


def find_claims(inventory: Inventory, facts: Mapping[str, HostFacts]) -> list[Claim]:
    """Every host that has what the head of the cluster has; the likeliest one first, by what this machine remembers."""
    mine = authority(inventory, facts)
    every = [claim for seen in facts.values() if (claim := _claim(inventory, mine, seen, facts))]
    return sorted(every, key=lambda one: (-one.known, -len(one.named_by), not one.runs))


def _claim(inventory: Inventory, mine: Authority, seen: HostFacts, facts: Mapping[str, HostFacts]) -> Claim | None:
    host, node = seen.host, node_of(mine.cluster, seen)
    runs = node is not None and is_head(mine.cluster, seen) and mine.owns(node.labels)
    holders = _with_key(mine, seen)
    # A worker's node counts for nothing, but on the host that is to be the head: that may be on its way.
    if not runs and (not holders or (node is not None and host != inventory.head_name)):
        return None
    address = inventory.hosts[host].address
    nodes = {name: node_of(mine.cluster, other) for name, other in facts.items() if name != host}
    named_by = tuple(name for name, one in nodes.items() if one and _names(one, mine.id, address))
    return Claim(host, runs, host in mine.heads, _known(seen, mine.id), named_by, tuple(holders))


def _names(node: Container, identity: str | None, address: str) -> bool:
    return node.labels.get(ID) == identity and node.labels.get(HEAD_ADDRESS) == address


def _known(facts: HostFacts, identity: str | None) -> int:
    led = facts.known_heads.here
    if led is None or led.id != identity:
        return 0
    if not led.done:
        return 1
    return 2 + led.leads + (led.leads and led.made)


def _with_key(mine: Authority, facts: HostFacts) -> list[Holder]:
    """Those that hold an API key there: the node, or else volumes of the cluster."""
    every = [one for one in holders_on(mine.cluster, mine.id, facts.host, facts) if KEY in one.ids]
    volumes = [one for one in every if not one.has_node and mine.owns(facts.volumes[one.volume])]
    return [one for one in every if one.has_node] or volumes[:MAX_VOLUMES]
