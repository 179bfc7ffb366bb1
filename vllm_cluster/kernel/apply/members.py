"""Looks at the members of a cluster beyond the inventory, and writes what the head shall remember of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from vllm_cluster.kernel.backends import TOKEN
from vllm_cluster.kernel.docker.client import DockerApi
from vllm_cluster.kernel.errors import HostError, LeftAlone, UsageError, VclusterError
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.hosts.observe import observe, usable
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.inventory.words import nearest
from vllm_cluster.kernel.node.secret_files import read_kept
from vllm_cluster.kernel.plan.desired import STATE_FOLDER
from vllm_cluster.kernel.plan.diff import remove_member
from vllm_cluster.kernel.plan.followed import Followed, follow
from vllm_cluster.kernel.plan.identity import authority, node_of
from vllm_cluster.kernel.plan.kept import Holder, find_holders, holders_on
from vllm_cluster.kernel.plan.members import (
    NONE_NAMED,
    Member,
    Membership,
    Named,
    Record,
    bearers,
    claimed_by,
    differences,
    former,
    record_of,
    recorded,
)
from vllm_cluster.kernel.plan.placement import Cluster
from vllm_cluster.kernel.plan.plan import RecordMembers
from vllm_cluster.kernel.plan.spec import CLUSTER, HEAD_ADDRESS, ID, ContainerSpec, node_name
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.wire.order import TAKEN, WANTED
from vllm_cluster.wire.parts import RECORD_FILE


def look_at_members(
    inventory: Inventory,
    fleet: Fleet,
    facts: Mapping[str, HostFacts],
    specs: Sequence[ContainerSpec],
    *,
    emit: Emit,
    named: Named = NONE_NAMED,
    locked: bool = False,
) -> Membership:
    """Who joins and who left, by what the head remembers; members that left are connected and looked at.

    Of those whose node cannot be removed, the ones to forget are remembered no longer.

    Raises:
        UsageError: a host that is named has not left.
    """
    found = record_of(inventory, facts)
    source, old = (found.host, found.record) if found else (None, None)
    if found and found.problem:
        emit(Event("warning", unreadable(found.problem), found.host))
    left = former(inventory, facts, old)
    _warn_of_claims(inventory, facts, old, left, emit)
    _require_left(inventory, left, named)
    identity = specs[0].cluster_id
    seen, failed = look_at_former(inventory, fleet, facts, left, identity, named=named.former, locked=locked)
    for name, error in failed.items():
        _warn(inventory, name, error, emit, forgotten=name in named.forget)
    lost = {name: left[name] for name in failed if name not in named.forget}
    new = recorded(inventory, facts, specs, old, lost.values())
    changed = "; ".join(differences(old, new, [left[name] for name in failed.keys() - lost.keys()]))
    changed = changed or ("the record cannot be read" if found and found.problem else "")
    moved_from = source if source not in (None, inventory.head_name) else None
    change = followed = None
    if source and (changed or moved_from):
        change = _change(inventory, specs, old.renamed(new) if old else {})
        followed = _followed(fleet.connections[source].docker, node_name(inventory.cluster), change)
    return Membership(
        seen,
        {member.address: name for name, member in lost.items()},
        {name: error.hint or "" for name, error in failed.items() if isinstance(error, LeftAlone)},
        new,
        changed,
        old is not None,
        moved_from,
        change,
        followed,
    )


def _warn_of_claims(
    inventory: Inventory, facts: Mapping[str, HostFacts], old: Record | None, left: Mapping[str, Member], emit: Emit
) -> None:
    for name, member in left.items():
        if old and (claims := claimed_by(inventory, facts, old, member)):
            text = f"it gives the machine id of {name}, which left the inventory: one of them gives another's"
            emit(Event("warning", text, claims))


def _change(inventory: Inventory, specs: Sequence[ContainerSpec], known: Mapping[str, str]) -> Cluster:
    gpus, addresses = {one.host: one.gpu_count for one in specs}, {one.host: one.address for one in specs}
    return replace(Cluster.of(inventory, {}), gpus=gpus, addresses=addresses, known=known)


def _followed(head: DockerApi, node: str, change: Cluster) -> Followed | None:
    raw, taken = (head.read_file(node, f"{STATE_FOLDER}/{name}") for name in (WANTED, TAKEN))
    return follow(raw, change, taken)


def _require_left(inventory: Inventory, left: Mapping[str, Member], named: Named) -> None:
    ways = {member.destination for member in left.values()} - {""}
    for way in named.former:
        if way not in ways:
            text = f"--former {way}: no former host is reached there; former hosts: {', '.join(sorted(ways)) or 'none'}"
            raise UsageError(
                text, hint=command_line("vcluster", "up", *([Option("--former"), sorted(ways)[0]] if ways else []))
            )
    for name in named.forget:
        if name in inventory.hosts:
            text = f"--forget {name}: {name} is in the inventory"
            raise UsageError(text, hint=f"take {name} out of the inventory first")
        if name not in left:
            near = nearest(name, left)
            also = f", did you mean {near}?" if near else f"; former hosts: {', '.join(left) or 'none'}"
            text = f"--forget {name}: {name} is not a former host{also}"
            raise UsageError(text, instead={name: near} if near else {})


def _warn(inventory: Inventory, host: str, error: VclusterError, emit: Emit, *, forgotten: bool) -> None:
    """Warn about a member that left and whose node is not removed, with what to do."""
    if isinstance(error, LeftAlone):
        # No command to paste there: it would remove a node of which it is not known whose it is.
        lines = error.fixes
        todo = f"to {'remove its node, or to ' if len(lines) > 1 else ''}forget it: {', or: '.join(lines)}"
        emit(Event("warning", f"{error.detail}; {'it is forgotten' if forgotten else todo}", host))
        return
    text = f"it left the inventory and cannot be reached: {getattr(error, 'detail', error.message)}"
    hand = by_hand(inventory, host)
    if forgotten:
        text += f"; it is forgotten. Its containers and volumes remain. {hand}"
    else:
        text += f"; its node may still run. Run vcluster up once it answers. {hand}. If it is gone for good: "
        text += command_line("vcluster", "up", Option("--forget"), host)
    emit(Event("warning", text, host))


def look_at_former(
    inventory: Inventory,
    fleet: Fleet,
    facts: Mapping[str, HostFacts],
    left: Mapping[str, Member],
    identity: str | None,
    *,
    named: Collection[str] = (),
    locked: bool = False,
) -> tuple[dict[str, HostFacts], dict[str, VclusterError]]:
    """The facts of members that left, and why nothing can be removed on others; `named` are destinations.

    The head alone leads nowhere: SSH goes as an inventory on this machine did before, or to what a person names. And it
    may claim the id of another cluster, whose token it knows once it was a member there.
    """
    known = fleet.runtime.visited.of(inventory.cluster)
    # None where this machine has not made the head of the cluster with this id.
    heads = [facts[name] for name in authority(inventory, facts).heads]
    made = any(head.made_here and head.was_head_of == identity for head in heads)
    ways = {name: member for name, member in left.items() if made and member.way in known}
    ways |= {name: replace(one, jump=None) for name, one in left.items() if one.destination in named}
    lost = fleet.join(inventory, [member.as_host(name) for name, member in ways.items()])
    seen, failed = fleet.each(
        lambda connection: _observe(inventory, connection, left[connection.name], facts), ways.keys() - lost.keys()
    )
    alone = unproven(inventory, fleet, facts, seen, identity, locked=locked)
    rest = ((name, left[name]) for name in left.keys() - ways.keys())
    away = {name: _not_looked_at(name, member, known=member.way in known) for name, member in rest}
    proven = {name: entry for name, entry in seen.items() if name not in alone}
    return proven, {**lost, **failed, **alone, **away}


def _not_looked_at(name: str, member: Member, *, known: bool) -> LeftAlone:
    where = member.destination or "this machine as its host"
    why = "the head names it, and this machine has not made that the head of this cluster"
    why = why if known else f"no inventory on this machine has named {where}"
    text = f"not looked at: it left the inventory, and {why}"
    lines = (member.former_line, command_line("vcluster", "up", Option("--forget"), name))
    return LeftAlone(name, text, hint="\n".join(filter(None, lines)))


def unproven(
    inventory: Inventory,
    fleet: Fleet,
    facts: Mapping[str, HostFacts],
    former: Mapping[str, HostFacts],
    identity: str | None,
    *,
    locked: bool,
) -> dict[str, VclusterError]:
    """The `former` hosts whose nodes do not prove that they are the cluster's; `facts` are of its other hosts.

    An id is on labels that many can read, and the head can claim any. The token of the cluster's Ray is a secret: it
    is in each node, and a head cannot put it onto a host that it never had.
    """
    token = None
    alone: dict[str, VclusterError] = {}
    for name, seen in former.items():
        node = node_of(inventory.cluster, seen)
        if not any(remove_member(inventory.cluster, identity or "", name, seen)):
            continue
        if node is None and not locked:
            # What a volume alone holds is read under the lease.
            continue
        token = token or _token(inventory, find_holders(inventory, facts), facts, fleet, locked=locked)
        theirs = holders_on(inventory.cluster, identity, name, seen)
        held = _token(inventory, theirs, {name: seen}, fleet, locked=locked)
        if token is None or held != token:
            text = "its node is left alone: it does not hold this cluster's Ray token, so it may be another cluster's"
            alone[name] = LeftAlone(name, text, hint=command_line("vcluster", "up", Option("--forget"), name))
    return alone


def _token(
    inventory: Inventory, holders: Iterable[Holder], facts: Mapping[str, HostFacts], fleet: Fleet, *, locked: bool
) -> str | None:
    kept = read_kept(inventory.cluster, holders, facts, fleet, locked=locked)
    return kept[TOKEN].content if TOKEN in kept else None


def unreadable(problem: str) -> str:
    """The warning about a record that cannot be read."""
    return f"{RECORD_FILE} cannot be read: {problem}; hosts that left the inventory may still hold a node"


def _observe(
    inventory: Inventory, connection: HostConnection, member: Member, others: Mapping[str, HostFacts]
) -> HostFacts:
    facts = observe(inventory, connection, volumes=True)
    if facts.machine_id != member.machine_id:
        # An alias of another laptop, or an address that was given away: what is there is not the member.
        raise HostError(
            connection.name,
            f"another machine answers at {member.host}: its machine id is {facts.machine_id}, not {member.machine_id}",
            hint=command_line("vcluster", "up", Option("--forget"), member.host),
        )
    for name in bearers(others, member):
        if others[name].docker.id in ("", facts.docker.id) or not facts.docker.id:
            text = f"its node is left alone: {name} gives the same machine id, and may have the same Docker"
            hint = command_line("vcluster", "up", Option("--forget"), connection.name)
            raise LeftAlone(connection.name, text, hint=hint)
    return usable(facts)


def by_hand(inventory: Inventory, host: str) -> str:
    """The commands that remove what a member that left still holds, or those that show it.

    Of two clusters of one name only one is meant, and the id by which they differ is the head's word: it may be the
    other's. So only an id that the inventory has is in a command that removes.
    """
    cluster = inventory.cluster
    if inventory.id is None:
        return f"If {host} was of this cluster, look first, {look_by_hand(cluster, host)}"
    labels = [_label(CLUSTER, cluster), _label(ID, inventory.id)]
    nodes = command_line("docker", "ps", Option("-aq"), *labels, Option(f"--filter=name={node_name(cluster)}"))
    volumes = command_line("docker", "volume", "ls", Option("-q"), *labels)
    both = f"{nodes} | xargs -r docker rm -f; {volumes} | xargs -r docker volume rm"
    # One word: what is behind a pipe runs where the line is pasted.
    return f"If {host} was of this cluster, by hand, {command_line('sh', Option('-c'), both, on=host)}"


def look_by_hand(cluster: str, on: str) -> str:
    """The commands that show what a host has of clusters of a name, each with its id and the address of its head."""
    label, of = _label(CLUSTER, cluster), f'id {{{{.Label "{ID}"}}}}, head {{{{.Label "{HEAD_ADDRESS}"}}}}'
    nodes = command_line("docker", "ps", Option("-a"), label, Option(f"--format={{{{.Names}}}}: {{{{.Status}}}}, {of}"))
    volumes = command_line("docker", "volume", "ls", label, Option(f"--format={{{{.Name}}}}: {of}"))
    both = command_line("sh", Option("-c"), f"{nodes}; {volumes}", on=on)
    return f"{both}, then remove there what has the id and the head of this cluster"


def _label(key: str, value: str) -> Option:
    return Option(f"--filter=label={key}={value}")


def record_members(connection: HostConnection, operation: RecordMembers, emit: Emit) -> None:
    """Write what the head shall remember, and the request where it follows the change."""
    node, record = node_name(operation.record.cluster), operation.record
    if not operation.seen:
        # No head was there before whose record could be read: members of then may be left somewhere.
        old, _ = Record.read(connection.docker.read_file(node, f"{STATE_FOLDER}/{RECORD_FILE}"))
        kept = old.missing_from(record) if old and old.id == record.id else ()
        for member in kept:
            emit(Event("warning", f"{member.name} left the inventory; run vcluster up again to remove its node"))
        record = Record(record.cluster, record.id, (*record.members, *kept))
    followed = _followed(connection.docker, node, operation.change) if operation.change else None
    files = {WANTED: (followed.content, 0o600)} if followed else {}
    # Last: with it the change is done, and is not looked for again.
    files[RECORD_FILE] = (record.document.encode(), 0o600)
    connection.docker.put_files(node, STATE_FOLDER, files)
