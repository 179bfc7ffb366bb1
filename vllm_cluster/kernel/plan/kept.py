"""Where a cluster's secrets are now: a generated one lives as long as any node or volume that holds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.plan.identity import authority, is_volume_name, node_of
from vllm_cluster.kernel.plan.spec import ID, SECRET, secrets_volume, state_volume

if TYPE_CHECKING:
    from vllm_cluster.kernel.inventory.model import Inventory


STARTED_AGAIN = "what was asked for is kept in its volume, and up starts it again"


@dataclass(frozen=True)
class Holder:
    """A node, or a volume without one, that holds secrets: their ids by name, and the volume that has the files."""

    host: str
    ids: Mapping[str, str]
    volume: str
    has_node: bool


def find_holders(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Iterator[Holder]:
    """Every holder whose secrets are the cluster's: the inventory's head, then where its head was, which may be moving.

    What another host holds is its own: the key that clients use is nothing that a worker may choose.

    Nodes come before volumes without one: what a node holds is in use, and is read without a container made for it.
    """
    mine = authority(inventory, facts)
    every = [holder for name in mine.heads for holder in holders_on(inventory.cluster, mine.id, name, facts[name])]
    yield from sorted(every, key=lambda holder: not holder.has_node)


def holders_on(cluster: str, identity: str | None, host: str, facts: HostFacts) -> Iterator[Holder]:
    """The holders of the cluster with this id on a host; a version that knew no ids has none on its labels."""
    node = node_of(cluster, facts)
    if node and node.labels.get(ID, identity) == identity:
        ids = secret_ids(node.labels)
        yield Holder(host, ids, secrets_volume(cluster, ids), has_node=True)
    for volume, labels in sorted(facts.volumes.items()):
        if is_volume_name(cluster, volume) and labels.get(ID, identity) == identity:
            yield Holder(host, secret_ids(labels), volume, has_node=False)


def kept_secrets(inventory: Inventory, facts: Mapping[str, HostFacts]) -> dict[str, str]:
    """The ids of the secrets that the cluster has now, by name, as labels have them: the files may be gone."""
    found: dict[str, str] = {}
    for holder in find_holders(inventory, facts):
        found = {**holder.ids, **found}
    return found


def left_by_head(cluster: str, facts: HostFacts) -> str:
    """Why it is not known what is served where the head's node is gone and has left what it was asked for; else empty.

    A worker leaves a volume of state too, but no API key.
    """
    had_key = any("api-key" in secret_ids(labels) for labels in facts.volumes.values())
    if node_of(cluster, facts) or state_volume(cluster) not in facts.volumes or not had_key:
        return ""
    return f"the head's node is gone; {STARTED_AGAIN}"


def secret_ids(labels: Mapping[str, str]) -> dict[str, str]:
    """The ids of secrets, by name, that labels of a node or of a volume name."""
    return {label.removeprefix(SECRET): value for label, value in labels.items() if label.startswith(SECRET)}
