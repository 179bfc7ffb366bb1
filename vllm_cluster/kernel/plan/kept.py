"""Where a cluster's secrets are now: a generated one lives as long as any node or volume that holds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.plan.identity import decide_cluster_id, is_of_cluster, is_volume_name, node_of
from vllm_cluster.kernel.plan.spec import SECRET, secrets_volume

if TYPE_CHECKING:
    from vllm_cluster.kernel.inventory.model import Inventory


@dataclass(frozen=True)
class Holder:
    """A node, or a volume without one, that holds secrets: their ids by name, and the volume that has the files."""

    host: str
    ids: Mapping[str, str]
    volume: str
    has_node: bool


def find_holders(inventory: Inventory, facts: Mapping[str, HostFacts], identity: str | None = None) -> Iterator[Holder]:
    """Every holder on these hosts: the inventory's head first, then other hosts, since the head may be moving.

    `identity` is the cluster's id, where it is known by other hosts than these.

    Nodes come before volumes without one: what a node holds is in use, and is read without a container made for it,
    which a host without images cannot make.
    """
    identity = identity or decide_cluster_id(inventory, facts)
    hosts = sorted(facts, key=lambda name: name != inventory.head_name)
    for host in hosts:
        node = node_of(inventory.cluster, facts[host])
        if node and is_of_cluster(inventory, identity, node.labels):
            ids = secret_ids(node.labels)
            yield Holder(host, ids, secrets_volume(inventory.cluster, ids), has_node=True)
    for host in hosts:
        for volume, labels in sorted(facts[host].volumes.items()):
            if is_volume_name(inventory.cluster, volume) and is_of_cluster(inventory, identity, labels):
                yield Holder(host, secret_ids(labels), volume, has_node=False)


def kept_secrets(inventory: Inventory, facts: Mapping[str, HostFacts]) -> dict[str, str]:
    """The ids of the secrets that the cluster has now, by name, as labels have them: the files may be gone."""
    found: dict[str, str] = {}
    for holder in find_holders(inventory, facts):
        found = {**holder.ids, **found}
    return found


def secret_ids(labels: Mapping[str, str]) -> dict[str, str]:
    """The ids of secrets, by name, that labels of a node or of a volume name."""
    return {label.removeprefix(SECRET): value for label, value in labels.items() if label.startswith(SECRET)}
