"""Which hosts have what a head has: the inventory's head, and others that were it, are to be it, or only claim so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.plan.identity import Authority, authority, is_head, node_of
from vllm_cluster.kernel.plan.kept import Holder, holders_on

if TYPE_CHECKING:
    from vllm_cluster.kernel.inventory.model import Inventory

# Of a host: each is read through a container, with the lease, and how many it lists is its own word.
KEY, MAX_VOLUMES = "api-key", 3


@dataclass(frozen=True)
class Claim:
    """A host that has what a head has, by its own labels: its node, or what holds the API key.

    `trusted` is one from which `up` takes the key and what is served. `known` is what this machine remembers of it: 3
    that it made it the head, 2 that it found it so, 1 that it was the head before, and 0 nothing.
    """

    host: str
    runs: bool
    trusted: bool
    known: int
    holders: tuple[Holder, ...]


def find_claims(inventory: Inventory, facts: Mapping[str, HostFacts]) -> list[Claim]:
    """Every host that has what the head of the cluster has; the likeliest one first, by what this machine remembers."""
    mine = authority(inventory, facts)
    every = [claim for seen in facts.values() if (claim := _claim(inventory, mine, seen))]
    return sorted(every, key=lambda one: (-one.known, not one.runs, one.host != inventory.head_name))


def _claim(inventory: Inventory, mine: Authority, facts: HostFacts) -> Claim | None:
    host, node = facts.host, node_of(mine.cluster, facts)
    runs = node is not None and is_head(mine.cluster, facts) and mine.owns(node.labels)
    holders = _with_key(mine, facts)
    # A worker's node counts for nothing, but on the host that is to be the head: that may be on its way.
    if not runs and (not holders or (node is not None and host != inventory.head_name)):
        return None
    led, known = facts.known_heads.here, 0
    if led and led.id == mine.id:
        known = 1 + led.leads + (led.leads and led.made)
    return Claim(host, runs, host in mine.heads, known, tuple(holders))


def _with_key(mine: Authority, facts: HostFacts) -> list[Holder]:
    """Those that hold an API key there: the node, or else volumes of the cluster."""
    every = [one for one in holders_on(mine.cluster, mine.id, facts.host, facts) if KEY in one.ids]
    volumes = [one for one in every if not one.has_node and mine.owns(facts.volumes[one.volume])]
    return [one for one in every if one.has_node] or volumes[:MAX_VOLUMES]
