"""Which cluster a container or a volume belongs to. The name is for people; the id decides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vllm_cluster.kernel.facts.docker_objects import Container, Image
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.plan.spec import BASE_IMAGE, CLUSTER, HEAD_ADDRESS, ID, SPEC, ContainerSpec, node_name

if TYPE_CHECKING:
    from vllm_cluster.kernel.inventory.model import Inventory

# What temporary containers are made for; their names are vcluster-CLUSTER-KIND-8 hexadecimal digits.
KINDS = ("cache", "door", "fit", "image", "links", "probe", "ranks")
_SUFFIX = re.compile(rf"-({'|'.join(KINDS)})-[0-9a-f]{{8}}")
_VOLUME = re.compile(r"-(state|secrets(-[0-9a-f]+)?)")


@dataclass(frozen=True)
class Owner:
    """The cluster that something belongs to; one that is not up has no id yet."""

    cluster: str
    id: str | None
    head: str = ""

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the owner; with the head's address where it is known."""
        optional = {ID: self.id or "", HEAD_ADDRESS: self.head}
        return {CLUSTER: self.cluster, **{label: value for label, value in optional.items() if value}}


def owner_of(spec: ContainerSpec) -> Owner:
    """The cluster that a node is of."""
    return Owner(spec.cluster, spec.cluster_id, spec.head_address)


def without_lease(cluster: str) -> Owner:
    """The owner of what `check` and `serve` make without the lease: no id.

    With the cluster's id a colleague's `up` or `down`, which has the lease, would remove it while it runs.
    """
    return Owner(cluster, None)


def is_temporary(cluster: str, container: Container) -> bool:
    """Whether a container has one of the names that temporary containers get."""
    name = node_name(cluster)
    return container.name.startswith(name) and bool(_SUFFIX.fullmatch(container.name[len(name) :]))


def is_volume_name(cluster: str, name: str) -> bool:
    """Whether a volume has one of the names that a cluster's volumes get."""
    prefix = node_name(cluster)
    return name.startswith(prefix) and bool(_VOLUME.fullmatch(name[len(prefix) :]))


def is_leftover(cluster: str, identity: str | None, container: Container) -> bool:
    """Whether a container is one that an earlier run left: by its id and by its name, since labels are inherited.

    What has an id was made under the lease: whoever has the lease now knows that its run is over. One without an id was
    made without the lease, or by a version that knew no ids: its run may not be over, so it is a leftover once it has
    ended, which each does by itself.
    """
    labels = container.labels
    if labels.get(CLUSTER) != cluster or not is_temporary(cluster, container):
        return False
    return labels[ID] == identity if ID in labels else container.state != "running"


def without_copies(containers: Iterable[Container], images: Iterable[Image]) -> tuple[Container, ...]:
    """These containers; those that have a node's name and labels from an image made of a node (docker commit), bare.

    The labels of a node that we make name the image it is made from; no image holds its own id, so they differ.
    """
    of_nodes = {image.id: image.labels for image in images if SPEC in image.labels}
    return tuple(replace(c, labels={}) if _is_copy(c, of_nodes.get(c.image_id)) else c for c in containers)


def _is_copy(container: Container, inherited: Mapping[str, str] | None) -> bool:
    if inherited is None or container.name != node_name(container.labels.get(CLUSTER, "")):
        return False
    return all(inherited.get(key) == container.labels.get(key) for key in (SPEC, BASE_IMAGE))


def decide_cluster_id(inventory: Inventory, facts: Mapping[str, HostFacts]) -> str | None:
    """The id of the cluster that an inventory means; None where it is not up, or where that cannot be decided.

    What the inventory pins decides; then a node on its head, nodes that joined its head, nodes of any head among its
    hosts (the head moves), and last what a cluster left: volumes, temporary containers. The first of these that bears
    exactly one id. What was left names its head too: where two teams share a host, the volume that one of them left
    there must not make the other's new cluster its own, which would then have its key, and the id by which each leaves
    the other alone. No laptop keeps the id: a colleague's would not know it.
    """
    if inventory.id:
        return inventory.id
    address = inventory.hosts[inventory.head_name].address
    addresses = {host.address for host in inventory.hosts.values()}
    nodes = [(name, node.labels) for name, entry in facts.items() if (node := node_of(inventory.cluster, entry))]
    volumes = [
        (name, labels)
        for name, entry in facts.items()
        for labels in entry.volumes.values()
        if labels.get(HEAD_ADDRESS) in addresses
    ]
    left = [
        (name, c.labels)
        for name, entry in facts.items()
        for c in entry.containers
        if is_temporary(inventory.cluster, c) and c.labels.get(HEAD_ADDRESS) in addresses
    ]
    joined = [(name, labels) for name, labels in nodes if labels.get(HEAD_ADDRESS) == address]
    for bearers in (
        [row for row in joined if row[0] == inventory.head_name],
        joined,
        [(name, labels) for name, labels in nodes if labels.get(HEAD_ADDRESS) in addresses],
        [row for row in volumes if row[0] == inventory.head_name],
        # Of an upgrade that broke off, only volumes know the id yet.
        [] if any(ID in labels for _, labels in nodes) else volumes,
        [] if nodes else left,
    ):
        found = {labels[ID] for _, labels in bearers if ID in labels}
        if found:
            return found.pop() if len(found) == 1 else None
    return None


def node_of(cluster: str, facts: HostFacts) -> Container | None:
    """The container that is the host's node of a cluster of this name, whichever cluster that is."""
    name = node_name(cluster)
    return next((c for c in facts.containers if c.name == name and c.labels.get(CLUSTER) == cluster), None)


@dataclass(frozen=True)
class Foreign:
    """A node, or a volume that a node left, of a cluster that this inventory does not mean."""

    host: str
    name: str
    cluster: str
    id: str
    head: str

    @property
    def text(self) -> str:
        """What it is, for people."""
        marks = [f"id {self.id}" if self.id else "", f"head {self.head}" if self.head else ""]
        known = ", ".join(filter(None, marks))
        return f"{self.name} belongs to another cluster, {self.cluster}" + (f" ({known})" if known else "")


def is_of_cluster(inventory: Inventory, identity: str | None, labels: Mapping[str, str]) -> bool:
    """Whether a node or a volume with these labels is of the cluster that the inventory means."""
    if labels.get(CLUSTER) != inventory.cluster:
        return False
    if ID in labels:
        return labels[ID] == identity
    # A version that knew no ids: its nodes name their head.
    head = labels.get(HEAD_ADDRESS)
    return head is None or head in {host.address for host in inventory.hosts.values()}


def find_foreign(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Iterator[Foreign]:
    """The nodes and volumes of other clusters of vcluster on the hosts."""
    identity = decide_cluster_id(inventory, facts)
    for name, observed in facts.items():
        for container in observed.containers:
            # A container of another name inherited its labels (docker commit), or is temporary.
            is_node = container.name == node_name(container.labels.get(CLUSTER, ""))
            if is_node and not is_of_cluster(inventory, identity, container.labels):
                yield _foreign(name, container.name, container.labels)
        for volume, labels in observed.volumes.items():
            if is_volume_name(inventory.cluster, volume) and not is_of_cluster(inventory, identity, labels):
                yield _foreign(name, f"the volume {volume}", labels)


def _foreign(host: str, name: str, labels: Mapping[str, str]) -> Foreign:
    return Foreign(host, name, labels.get(CLUSTER, "?"), labels.get(ID, ""), labels.get(HEAD_ADDRESS, ""))
