"""Which hosts have what a head has: the inventory's head, and others that were it, are to be it, or only claim so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

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

    `trusted` is one from which `up` takes the key and what is served. `known` is what this machine remembers of it: 3
    that it made it the head, 2 that it found it so, 1 that it was the head before, and 0 nothing, or only that it
    `began` to make it the head. `named_by` are the hosts whose nodes name it as their head, and are none themselves.
    """

    host: str
    runs: bool
    trusted: bool
    known: int
    began: bool
    holders: tuple[Holder, ...]
    named_by: tuple[str, ...] = ()


def find_claims(inventory: Inventory, facts: Mapping[str, HostFacts]) -> list[Claim]:
    """Every host that has what the head of the cluster has, by its id; the likeliest one first.

    That is one that other nodes name, then by what this machine remembers. A worker that lies can name another host so:
    more than one claim stays a question.
    """
    mine = authority(inventory, facts)
    every = [claim for seen in facts.values() if (claim := _claim(inventory, mine, seen))]
    heads = [one.host for one in every]
    nodes = {name: node_of(mine.cluster, seen) for name, seen in facts.items() if name not in heads}
    named = {name: node.labels.get(HEAD_ADDRESS) for name, node in nodes.items() if node and _is_of(mine, node.labels)}
    addresses = {host: inventory.hosts[host].address for host in heads}
    every = [
        replace(one, named_by=tuple(name for name, head in named.items() if head == addresses[one.host]))
        for one in every
    ]
    return sorted(every, key=lambda one: (not one.named_by, -one.known, -len(one.named_by), not one.runs))


def _claim(inventory: Inventory, mine: Authority, facts: HostFacts) -> Claim | None:
    host, node, led = facts.host, node_of(mine.cluster, facts), facts.known_heads.here
    runs = node is not None and is_head(mine.cluster, facts) and _is_of(mine, node.labels)
    holders = _with_key(mine, facts)
    # A worker's node counts for nothing, but on the host that is to be the head: that may be on its way.
    if not runs and (not holders or (node is not None and host != inventory.head_name)):
        return None
    here = led is not None and led.id == mine.id
    known = 1 + led.leads + (led.leads and led.made) if led and here and led.done else 0
    return Claim(host, runs, host in mine.heads, known, bool(led and here and not led.done), tuple(holders))


def _is_of(mine: Authority, labels: Mapping[str, str]) -> bool:
    """Whether labels are of this cluster by their id, whichever head they name: that is the question."""
    return mine.owns(labels) or (mine.id is not None and labels.get(ID) == mine.id)


def _with_key(mine: Authority, facts: HostFacts) -> list[Holder]:
    """Those that hold an API key there: the node, or else volumes of the cluster."""
    every = [one for one in holders_on(mine.cluster, mine.id, facts.host, facts) if KEY in one.ids]
    volumes = [one for one in every if not one.has_node and _is_of(mine, facts.volumes[one.volume])]
    return [one for one in every if one.has_node] or volumes[:MAX_VOLUMES]
