"""Which cluster a container or a volume belongs to. The name is for people; the id decides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vllm_cluster.kernel.facts.docker_objects import Container, Image
from vllm_cluster.kernel.facts.heads import KnownHeads
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.plan.spec import BASE_IMAGE, CLUSTER, HEAD_ADDRESS, ID, ROLE, SPEC, ContainerSpec, node_name

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


@dataclass(frozen=True)
class Authority:
    """Which cluster an inventory means, and whose word on it counts.

    `id` is None where it is not up, or where that cannot be decided. `heads` are the hosts whose nodes and volumes have
    its secrets, its members and what it serves: the inventory's head, and then those that `up` has made its head from
    this machine, since it may be moving; or the one that a person names. What another host's labels claim is its own
    word, and may be made up. `addresses` are those by which nodes and volumes name their head; None where a person has
    given the id, or named the host that is the head.
    """

    cluster: str
    id: str | None
    heads: tuple[str, ...]
    addresses: frozenset[str] | None
    hosts: frozenset[str]

    def owns(self, labels: Mapping[str, str]) -> bool:
        """Whether a node or a volume with these labels is of the cluster.

        An id is on labels that many can read. So what has it must name a head of the cluster too.
        """
        if labels.get(CLUSTER) != self.cluster:
            return False
        head = labels.get(HEAD_ADDRESS)
        if ID in labels:
            return labels[ID] == self.id and (self.addresses is None or head in self.addresses)
        # A version that knew no ids: its nodes name their head.
        return head is None or head in self.hosts

    def owns_volume(self, labels: Mapping[str, str], seen: HostFacts) -> bool:
        """Whether a volume with these labels is of the cluster, on a host that was seen so.

        Where the node is the cluster's, a volume with its id is too: it names the head under which it was made.
        """
        if self.owns(labels):
            return True
        node = node_of(self.cluster, seen)
        return node is not None and ID in labels and labels[ID] == self.id and self.owns(node.labels)


def authority(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Authority:
    """Decide which cluster an inventory means by what is on its hosts, and whose word on it counts."""
    head, identity = inventory.head_name, inventory.id or _known_id(inventory, facts)
    moved, addresses = list[str](), {inventory.hosts[head].address}
    if identity and _may_be(inventory, identity, facts):
        before = [name for name, seen in facts.items() if name != head and seen.was_head_of == identity]
        # What was made from here may have had another address, or be gone.
        addresses |= {inventory.hosts[name].address for name in before}
        addresses |= {led.address for led in _known_heads(facts).every if led.id == identity}
        moved = [name for name in before if not who_denies(inventory, name, facts)]
        moved += [
            name for name, seen in facts.items() if seen.may_lead == identity and _follows(inventory, name, facts)
        ]
    # A person's word takes the place of all of that.
    every = (head, *moved) if inventory.keep is None else (inventory.keep or head,)
    heads = tuple(name for name in every if name in facts)
    hosts = frozenset(host.address for host in inventory.hosts.values())
    named = None if inventory.id or inventory.keep is not None else frozenset(addresses)
    return Authority(inventory.cluster, identity, heads, named, hosts)


def _may_be(inventory: Inventory, identity: str, facts: Mapping[str, HostFacts]) -> bool:
    """Whether the inventory's head may be of the cluster with this id, by what this machine remembers.

    One that was made the head of another cluster from here, and a head that is not known here at all, claim it alone:
    what this machine knows of that cluster is not for them. A host becomes the head where the one before is there too.
    """
    head = facts.get(inventory.head_name)
    if head is None or inventory.id:
        return True
    if here := head.known_heads.here:
        return here.id == identity
    return not is_head(inventory.cluster, head) and any(seen.was_head_of == identity for seen in facts.values())


def _follows(inventory: Inventory, name: str, facts: Mapping[str, HostFacts]) -> bool:
    """Whether the inventory's head has become a worker of this host: the move that began is over there."""
    own = facts.get(inventory.head_name)
    if own is None or name == inventory.head_name or facts[name].was_head_of:
        return False
    node = node_of(inventory.cluster, own)
    return node is not None and node.labels.get(HEAD_ADDRESS) == inventory.hosts[name].address


def who_denies(inventory: Inventory, name: str, facts: Mapping[str, HostFacts]) -> list[str]:
    """The other hosts whose nodes name a further head than this one, which this machine remembers as the head.

    An `up` from another machine has moved it on, or they lie. While it moves from here, no node names the next head
    before the node of this one is gone.
    """
    here = facts[name].known_heads.here
    own = {inventory.hosts[name].address, here.address if here else ""}
    nodes = {other: node_of(inventory.cluster, seen) for other, seen in facts.items() if other != name}
    rows = {
        other: node.labels for other, node in nodes.items() if node and node.labels.get(ID) == facts[name].was_head_of
    }
    return [other for other, labels in rows.items() if labels.get(HEAD_ADDRESS) not in own]


def _known_heads(facts: Mapping[str, HostFacts]) -> KnownHeads:
    """What this machine knows of heads, but for that of a single host."""
    return next((seen.known_heads for seen in facts.values()), KnownHeads())


def decide_cluster_id(inventory: Inventory, facts: Mapping[str, HostFacts]) -> str | None:
    """The id of the cluster that an inventory means; as `authority` has it."""
    return authority(inventory, facts).id


def _known_id(inventory: Inventory, facts: Mapping[str, HostFacts]) -> str | None:
    """The id that this machine and the hosts know; None where there is none, or where it cannot be decided.

    The head's own node decides, then what one cluster left there, what is remembered here of it, and last another host
    that was made the head from here. What other hosts claim decides nothing: where two teams share a host, what one of
    them left there must not make the other's new cluster its own, by whose id each leaves the other alone.
    """
    head = facts.get(inventory.head_name)
    addresses = {host.address for host in inventory.hosts.values()}
    if head:
        node = node_of(inventory.cluster, head)
        if node and ID in node.labels:
            return node.labels[ID]
        own = _ids(labels for labels in _left(inventory, head) if labels.get(HEAD_ADDRESS) in addresses)
        if len(own) == 1:
            return own.pop()
        if head.may_lead:
            return head.may_lead
    else:
        known = _known_heads(facts).head
        return known.id if known and known.leads else None
    moved = {seen.was_head_of for seen in facts.values() if seen.was_head_of in _ids(_labels(inventory, seen))}
    return moved.pop() if len(moved) == 1 else None


def _ids(rows: Iterable[Mapping[str, str]]) -> set[str]:
    return {labels[ID] for labels in rows if ID in labels}


def _labels(inventory: Inventory, facts: HostFacts) -> Iterator[Mapping[str, str]]:
    """The labels of a host's node of a cluster of this name, and of what one left there."""
    if node := node_of(inventory.cluster, facts):
        yield node.labels
    yield from _left(inventory, facts)


def _left(inventory: Inventory, facts: HostFacts) -> Iterator[Mapping[str, str]]:
    """The labels of the volumes of a cluster of this name, and of its temporary containers where it has no node."""
    yield from facts.volumes.values()
    if node_of(inventory.cluster, facts) is None:
        yield from (one.labels for one in facts.containers if is_temporary(inventory.cluster, one))


def node_of(cluster: str, facts: HostFacts) -> Container | None:
    """The container that is the host's node of a cluster of this name, whichever cluster that is."""
    name = node_name(cluster)
    return next((c for c in facts.containers if c.name == name and c.labels.get(CLUSTER) == cluster), None)


def is_head(cluster: str, facts: HostFacts) -> bool:
    """Whether the host's node of a cluster of this name is the head, by its own label."""
    node = node_of(cluster, facts)
    return node is not None and node.labels.get(ROLE) == "head"


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


def find_foreign(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Iterator[Foreign]:
    """The nodes and volumes of other clusters of vcluster on the hosts."""
    mine = authority(inventory, facts)
    for name, observed in facts.items():
        for container in observed.containers:
            # A container of another name inherited its labels (docker commit), or is temporary.
            is_node = container.name == node_name(container.labels.get(CLUSTER, ""))
            if is_node and not mine.owns(container.labels):
                yield _foreign(name, container.name, container.labels)
        for volume, labels in observed.volumes.items():
            if is_volume_name(inventory.cluster, volume) and not mine.owns_volume(labels, observed):
                yield _foreign(name, f"the volume {volume}", labels)


def _foreign(host: str, name: str, labels: Mapping[str, str]) -> Foreign:
    return Foreign(host, name, labels.get(CLUSTER, "?"), labels.get(ID, ""), labels.get(HEAD_ADDRESS, ""))
