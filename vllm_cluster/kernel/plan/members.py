"""The members of a cluster, as its head remembers them: a host that left the inventory is not forgotten."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated

from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.inventory import grammar
from vllm_cluster.kernel.inventory.model import Host, HostSsh, Inventory
from vllm_cluster.kernel.plan.followed import Followed
from vllm_cluster.kernel.plan.identity import authority, node_of
from vllm_cluster.kernel.plan.placement import Cluster
from vllm_cluster.kernel.plan.spec import ID, ROLE, ContainerSpec
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.text import host_port, printable
from vllm_cluster.wire.parts import MAX_MEMBERS
from vllm_cluster.wire.reading import RefusedDocument, bounded, convert
from vllm_cluster.wire.values import Count, Number, Port, shaped

FORMAT = 1
LOCAL = "local"
# Of members that cannot be read so many are named.
MAX_PROBLEMS = 3
# How SSH gets to a host: where it leads, user, port and jump hosts, as far as an inventory names them.
Way = tuple[str, str | None, int | None, str | None]


@dataclass(frozen=True)
class Member:
    """A host of the cluster, and how the inventory reached it; `since` is when it joined, by the head's clock.

    One that is `leaving` left the inventory, and its node could not be removed yet. The types are the inventory's:
    whoever may use the head's Docker can write the file, and other hosts are connected to by its content.
    """

    name: Annotated[str, grammar.host_name]
    address: Annotated[str, grammar.address]
    machine_id: Annotated[str, shaped("[!-~]{0,128}", "the id of a machine")]
    gpus: Count
    since: Number
    host: Annotated[str, grammar.ssh_host]
    user: Annotated[str, grammar.ssh_user] | None = None
    port: Port | None = None
    jump: Annotated[str, grammar.ssh_jump] | None = None
    leaving: bool = False

    @property
    def way(self) -> Way:
        """How the inventory reached it."""
        return self.host, self.user, self.port, self.jump

    @property
    def destination(self) -> str:
        """Where a person lets SSH go who names it; never over the jump hosts of the record.

        Empty for `local`, which would be the machine that reads the record.
        """
        if self.host == LOCAL:
            return ""
        place = host_port(self.host, self.port) if self.port else self.host
        return f"{self.user}@{place}" if self.user else place

    @property
    def former_line(self) -> str:
        """The command by which a person names it; empty for `local`."""
        return command_line("vcluster", "up", Option("--former"), self.destination) if self.destination else ""

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

    def renamed(self, later: Record) -> dict[str, str]:
        """The name that a member has in a later record, by the name and the address that it has in this one."""
        now = {member.machine_id: member.name for member in later.members}
        there = [(member, now[member.machine_id]) for member in self.members if member.machine_id in now]
        return {word: name for member, name in there for word in (member.name, member.address)}

    @classmethod
    def read(cls, raw: bytes | None) -> tuple[Record | None, str]:
        """The record in a file as far as it can be read, and what of it cannot be; None where there is none."""
        if not raw:
            return None, ""
        try:
            data = json.loads(bounded(raw))
            if type(data["v"]) is not int or data["v"] != FORMAT:
                return None, f"it has format {data['v']!r:.20}; this vcluster reads {FORMAT}"
            rows = list(data["members"])[:MAX_MEMBERS]
            read = [_member(number, row) for number, row in enumerate(rows, 1)]
            wrong = [entry for entry in read if isinstance(entry, str)]
            problems = [*wrong[:MAX_PROBLEMS], *([f"{len(wrong)} in all"] if len(wrong) > MAX_PROBLEMS else [])]
            members = tuple(entry for entry in read if isinstance(entry, Member))
            return cls(str(data["cluster"]), str(data["id"]), members), "; ".join(problems)
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            return None, f"it is not a record of members ({type(error).__name__})"


def _member(number: int, row: object) -> Member | str:
    """A member as the file has it, or what is wrong with it."""
    try:
        return convert(Member, row, f"member {number}")
    except RefusedDocument as refused:
        return str(refused)


@dataclass(frozen=True)
class Remembered:
    """The host whose node is the head now, what it remembers, and what of its record cannot be read."""

    host: str
    record: Record | None
    problem: str


@dataclass(frozen=True)
class Membership:
    """Who joins and who leaves: the facts of members that left, by host, and what the head shall remember.

    `lost` are the members that left and whose node is not removed, address → name; `alone` those of them that are not
    touched, with the remedy. `changed` names for people what is new in
    the record, empty when nothing is; `known` whether the head had one that could be read. `moved_from` is the host of
    the head that is now, where that is another one; `change` is what the request must follow, None where there is
    nothing, and `request` what to serve from now on, None where it stays.
    """

    former: Mapping[str, HostFacts]
    lost: Mapping[str, str]
    alone: Mapping[str, str]
    record: Record
    changed: str
    known: bool
    moved_from: str | None
    change: Cluster | None
    request: Followed | None


@dataclass(frozen=True)
class Named:
    """Hosts outside the inventory that a person names: some to `forget`, and the destinations of `former` members."""

    forget: Collection[str] = ()
    former: Collection[str] = ()


NONE_NAMED = Named()


def record_of(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Remembered | None:
    """What the cluster's head remembers, None where there is no head; the inventory's own goes first."""
    mine = authority(inventory, facts)
    for name in mine.heads:
        node = node_of(inventory.cluster, facts[name])
        if node and node.labels.get(ROLE) == "head" and node.labels.get(ID, mine.id) == mine.id:
            record, problem = Record.read(facts[name].member_record.encode())
            if record and record.id != node.labels.get(ID, record.id):
                return Remembered(name, None, f"it is of another cluster, with the id {printable(record.id)[:40]}")
            return Remembered(name, record, problem)
    return None


def former(inventory: Inventory, facts: Mapping[str, HostFacts], record: Record | None) -> dict[str, Member]:
    """The members that left the inventory, by a name that no host of it has.

    A machine that is in the inventory under another name was renamed, and another machine behind the same way was put
    in its place: neither left. Which machine a host of the inventory is that did not answer is not known, so the
    member of its name did not leave either. Another member that gives its id does not rename it.
    """
    unknown = inventory.hosts.keys() - facts.keys()
    ways = ways_of(inventory)
    left: dict[str, Member] = {}
    for member in record.members if record else ():
        if record is None or member.name in unknown or member.way in ways:
            continue
        if not bearers(facts, member) or claimed_by(inventory, facts, record, member):
            name = member.name
            while name in inventory.hosts or name in left:
                name += "-former"
            left[name] = member
    return left


def bearers(facts: Mapping[str, HostFacts], member: Member) -> list[str]:
    """The hosts that give a member's machine id."""
    return [name for name, entry in facts.items() if entry.machine_id == member.machine_id]


def claimed_by(inventory: Inventory, facts: Mapping[str, HostFacts], record: Record, member: Member) -> str:
    """The host that gives a member's machine id while its name or its way is another member's; empty if there is none.

    By its word alone the member's node would be forgotten.
    """
    others = [one for one in record.members if one != member]
    names, ways = {one.name for one in others}, {one.way for one in others}
    there = [name for name in bearers(facts, member) if name in inventory.hosts]
    claims = [name for name in there if name in names or way_to(inventory, inventory.hosts[name]) in ways]
    return claims[0] if claims == there != [] else ""


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
        way = way_to(inventory, inventory.hosts[spec.host])
        members.append(Member(spec.host, spec.address, machine, spec.gpu_count, since, *way))
    return Record(
        inventory.cluster, specs[0].cluster_id, (*members, *(replace(member, leaving=True) for member in leaving))
    )


def differences(old: Record | None, new: Record, forgotten: Collection[Member] = ()) -> Iterator[str]:
    """What changes from one record to the other, for people; how a host is reached does not count.

    Colleagues reach it as users of their own, and each `up` would write the record again.
    """
    if old is None or old.id != new.id:
        yield f"members {', '.join(member.name for member in new.members)}"
        return
    # Of two members that give one machine id each is what it was called.
    same = {(member.machine_id, member.name): member for member in old.members}
    stay = {(member.machine_id, member.name) for member in new.members}
    machines = {member.machine_id: member for key, member in same.items() if key not in stay}
    names = {member.name: member for member in old.members}
    for member in new.members:
        before = same.get((member.machine_id, member.name)) or machines.get(member.machine_id)
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


def ways_of(inventory: Inventory) -> frozenset[Way]:
    """The ways to the hosts of an inventory."""
    return frozenset(way_to(inventory, host) for host in inventory.hosts.values())


def way_to(inventory: Inventory, host: Host) -> Way:
    """Name how the inventory reaches a host."""
    ssh, own = inventory.ssh, host.ssh
    return host.destination, own.user or ssh.user, own.port or ssh.port, own.jump or ssh.jump
