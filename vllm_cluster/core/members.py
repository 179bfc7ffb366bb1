"""The members of a cluster, as its head remembers them: a host that left the inventory is not forgotten."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace

from vllm_cluster.core.facts import HostFacts
from vllm_cluster.core.identity import is_ours, node_of, our_id
from vllm_cluster.core.spec import ROLE, ContainerSpec
from vllm_cluster.engine.request import Followed
from vllm_cluster.inventory.model import Host, HostSsh, Inventory

FORMAT = 1


@dataclass(frozen=True)
class Member:
    """A host of the cluster, and how the inventory reached it; `since` is when it joined, by the head's clock.

    One that is `leaving` left the inventory, and its node could not be removed yet.
    """

    name: str
    address: str
    machine_id: str
    gpus: int
    since: float
    host: str
    user: str | None = None
    port: int | None = None
    jump: str | None = None
    leaving: bool = False

    def as_host(self, name: str) -> Host:
        """The host of an inventory that leads there."""
        ssh = HostSsh(host=self.host, user=self.user, port=self.port, jump=self.jump)
        return Host(name=name, ssh=ssh, address=self.address)


@dataclass(frozen=True)
class Record:
    """What the head's cluster.json holds; the node program on the head takes the GPUs that it waits for from here."""

    cluster: str
    id: str
    members: tuple[Member, ...]

    @property
    def document(self) -> str:
        """The file's content."""
        return json.dumps({"v": FORMAT, **asdict(self)}, indent=1) + "\n"

    def missing_from(self, other: Record) -> tuple[Member, ...]:
        """The members that another record does not have, as leaving ones."""
        there = {member.machine_id for member in other.members}
        return tuple(replace(member, leaving=True) for member in self.members if member.machine_id not in there)

    @classmethod
    def read(cls, raw: bytes | None) -> Record | None:
        """The record in a file; None where there is none that can be read."""
        known = {field.name for field in fields(Member)}
        try:
            data = json.loads(raw or b"")
            rows = [{key: value for key, value in row.items() if key in known} for row in data["members"]]
            return cls(str(data["cluster"]), str(data["id"]), tuple(Member(**row) for row in rows))
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


@dataclass(frozen=True)
class Membership:
    """Who joins and who leaves: the facts of members that left, by host, and what the head shall remember.

    `lost` are the members that left and cannot be reached, address → name. `changed` says for people what is new in
    the record, empty when nothing is; `known` whether the head had one that could be read. `moved_from` is the host of
    the head that is now, where that is another one; `request` is what to serve from now on, None where it stays.
    """

    former: Mapping[str, HostFacts]
    lost: Mapping[str, str]
    record: Record
    changed: str
    known: bool
    moved_from: str | None
    request: Followed | None


def record_of(inventory: Inventory, facts: Mapping[str, HostFacts]) -> tuple[str, Record | None] | None:
    """The host whose node is the cluster's head now, and what it remembers; the inventory's head goes first."""
    identity = our_id(inventory, facts)
    for name in sorted(facts, key=lambda name: name != inventory.head_name):
        node = node_of(inventory.cluster, facts[name])
        if node and node.labels.get(ROLE) == "head" and is_ours(inventory, identity, node.labels):
            return name, Record.read(facts[name].record.encode())
    return None


def former(inventory: Inventory, facts: Mapping[str, HostFacts], record: Record | None) -> dict[str, Member]:
    """The members that left the inventory, by a name that no host of it has.

    A machine that is in the inventory under another name was renamed, and another machine behind the same way was put
    in its place: neither left. Which machine a host of the inventory is that did not answer is not known, so the
    member of its name did not leave either.
    """
    unknown = inventory.hosts.keys() - facts.keys()
    machines = {entry.machine_id for entry in facts.values()}
    ways = {_way(inventory, host) for host in inventory.hosts.values()}
    left: dict[str, Member] = {}
    for member in record.members if record else ():
        if member.name in unknown or member.machine_id in machines:
            continue
        if (member.host, member.user, member.port, member.jump) not in ways:
            name = member.name
            while name in inventory.hosts or name in left:
                name += "-former"
            left[name] = member
    return left


def recorded(
    inventory: Inventory,
    facts: Mapping[str, HostFacts],
    specs: Iterable[ContainerSpec],
    old: Record | None,
    leaving: Iterable[Member],
) -> Record:
    """What the head shall remember: the hosts of the inventory, and members that left and are not clean yet."""
    before = {member.machine_id: member for member in old.members} if old else {}
    specs = list(specs)
    members = []
    for spec in specs:
        machine = facts[spec.host].machine_id
        since = before[machine].since if machine in before else facts[inventory.head_name].clock
        way = _way(inventory, inventory.hosts[spec.host])
        members.append(Member(spec.host, spec.address, machine, spec.gpu_count, since, *way))
    return Record(
        inventory.cluster, specs[0].cluster_id, (*members, *(replace(member, leaving=True) for member in leaving))
    )


def differences(old: Record | None, new: Record, forgotten: Collection[Member] = ()) -> Iterator[str]:
    """What changes from one record to the other, for people; how a host is reached is no difference."""
    if old is None or old.id != new.id:
        yield f"members {', '.join(member.name for member in new.members)}"
        return
    machines = {member.machine_id: member for member in old.members}
    names = {member.name: member for member in old.members}
    for member in new.members:
        before = machines.get(member.machine_id)
        if before is None and member.name in names:
            yield f"{member.name} is another machine now"
        elif before is None:
            yield f"{member.name} joins"
        elif before != replace(member, **{name: getattr(before, name) for name in ("host", "user", "port", "jump")}):
            yield _changed(before, member)
    here = {member.machine_id for member in new.members}
    replaced = {member.name for member in new.members}
    for member in old.members:
        if member.machine_id not in here and member.name not in replaced:
            yield f"{member.name} {'is forgotten' if member in forgotten else 'left'}"


def _changed(before: Member, member: Member) -> str:
    if before.name != member.name:
        return f"{before.name} is called {member.name}"
    if before.address != member.address:
        return f"{member.name} has the address {member.address}, before {before.address}"
    if before.gpus != member.gpus:
        return f"{member.name} has {member.gpus} GPUs, before {before.gpus}"
    return f"{member.name} {'left and cannot be reached' if member.leaving else 'is back'}"


def _way(inventory: Inventory, host: Host) -> tuple[str, str | None, int | None, str | None]:
    ssh, own = inventory.ssh, host.ssh
    return host.destination, own.user or ssh.user, own.port or ssh.port, own.jump or ssh.jump
