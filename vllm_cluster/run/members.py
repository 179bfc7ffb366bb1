"""Looks at the members of a cluster beyond the inventory, and carries what the head keeps to another host."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from vllm_cluster.core import request
from vllm_cluster.core.desired import STATE_FOLDER
from vllm_cluster.core.followed import ChangedCluster, carried, follow
from vllm_cluster.core.identity import Owner, owner_of
from vllm_cluster.core.members import Member, Membership, Record, differences, former, record_of, recorded
from vllm_cluster.core.plan import MoveHead, RecordMembers
from vllm_cluster.core.spec import CLUSTER, ID, ContainerSpec, Mount, node_name
from vllm_cluster.docker.client import DockerApi
from vllm_cluster.docker.container_body import volume_writer_body
from vllm_cluster.docker.temporary import temporary_container
from vllm_cluster.errors import HostError, UsageError, VclusterError
from vllm_cluster.events import Emit, Event
from vllm_cluster.facts.host_facts import HostFacts
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.inventory.words import nearest
from vllm_cluster.run.connection import Fleet, HostConnection
from vllm_cluster.run.observe import RECORD_FILE, observe, usable

# What a head keeps beside its members: what to serve, what was ready, and the history.
KEPT = (request.FILE, request.READY_FILE, request.RESULTS_FILE, "audit.jsonl")


def membership(
    inventory: Inventory,
    fleet: Fleet,
    facts: Mapping[str, HostFacts],
    specs: Sequence[ContainerSpec],
    *,
    emit: Emit,
    forget: Collection[str] = (),
) -> Membership:
    """Who joins and who left, by what the head remembers; members that left are connected and looked at.

    Of those that cannot be reached, the ones to `forget` are remembered no longer.

    Raises:
        UsageError: one to forget has not left.
    """
    found = record_of(inventory, facts)
    source, old = (found.host, found.record) if found else (None, None)
    if found and found.problem:
        emit(Event("warning", unreadable(found.problem), found.host))
    left = former(inventory, facts, old)
    owner = Owner(inventory.cluster, specs[0].cluster_id)
    _require_left(inventory, left, forget)
    seen, failed = look_at_former(inventory, fleet, left)
    for name, error in failed.items():
        _warn(owner, name, error, emit, forgotten=name in forget)
    lost = {name: left[name] for name in failed if name not in forget}
    new = recorded(inventory, facts, specs, old, lost.values())
    changed = "; ".join(differences(old, new, [left[name] for name in failed.keys() - lost.keys()]))
    changed = changed or ("the record cannot be read" if found and found.problem else "")
    moved_from = source if source not in (None, inventory.head_name) else None
    followed = None
    if source and (changed or moved_from):
        engine, node = fleet.connections[source].engine, node_name(inventory.cluster)
        raw, taken = (engine.read_file(node, f"{STATE_FOLDER}/{name}") for name in (request.FILE, request.TAKEN_FILE))
        gpus = {spec.address: spec.gpu_count for spec in specs}
        # Where the head was when it took the request: its host may have another address since.
        here = inventory.hosts[source].address
        before = old.address_of(facts[source].machine_id) or here if old else here
        moved = old.readdressed(new) if old else {}
        followed = follow(raw, ChangedCluster(gpus, (before, specs[0].address), fleet.addresses, moved), taken)
    return Membership(
        seen,
        {member.address: name for name, member in lost.items()},
        new,
        changed,
        old is not None,
        moved_from,
        followed,
    )


def _require_left(inventory: Inventory, left: Mapping[str, Member], forget: Collection[str]) -> None:
    for name in forget:
        if name in inventory.hosts:
            text = f"--forget {name}: {name} is in the inventory"
            raise UsageError(text, hint=f"take {name} out of the inventory first")
        if name not in left:
            near = nearest(name, left)
            also = f", did you mean {near}?" if near else f"; former hosts: {', '.join(left) or 'none'}"
            text = f"--forget {name}: {name} is not a former host{also}"
            raise UsageError(text, instead={name: near} if near else {})


def _warn(owner: Owner, host: str, error: VclusterError, emit: Emit, *, forgotten: bool) -> None:
    """Warn about a member that left and cannot be reached, with what to do."""
    text = f"it left the inventory and cannot be reached: {getattr(error, 'detail', error.message)}"
    if forgotten:
        emit(
            Event(
                "warning", f"{text}; it is forgotten. Its containers and volumes remain. {by_hand(owner, host)}", host
            )
        )
        return
    ways = (
        f"Run vcluster up once it answers. {by_hand(owner, host)}. If it is gone for good: vcluster up --forget {host}"
    )
    emit(Event("warning", f"{text}; its node may still run. {ways}", host))


def look_at_former(
    inventory: Inventory, fleet: Fleet, left: Mapping[str, Member]
) -> tuple[dict[str, HostFacts], dict[str, VclusterError]]:
    """The facts of members that left, and why others cannot be reached."""
    lost = fleet.join(inventory, [member.as_host(name) for name, member in left.items()])
    facts, failed = fleet.each(
        lambda connection: _observe(inventory, connection, left[connection.name]), left.keys() - lost.keys()
    )
    return facts, {**lost, **failed}


def unreadable(problem: str) -> str:
    """The warning about a record that cannot be read."""
    return f"{RECORD_FILE} cannot be read: {problem}; hosts that left the inventory may still hold a node"


def _observe(inventory: Inventory, connection: HostConnection, member: Member) -> HostFacts:
    facts = observe(inventory, connection, volumes=True)
    if facts.machine_id != member.machine_id:
        # An alias of another laptop, or an address that was given away: what is there is not the member.
        raise HostError(
            connection.name,
            f"another machine answers at {member.host}: its machine id is {facts.machine_id}, not {member.machine_id}",
        )
    return usable(facts)


def by_hand(owner: Owner, host: str) -> str:
    """The commands that remove what a member that left still holds, and nothing of another cluster of that name."""
    label = f"label={ID}={owner.id}" if owner.id else f"label={CLUSTER}={owner.cluster}"
    nodes = f"docker ps -aq --filter {label} --filter name={node_name(owner.cluster)} | xargs -r docker rm -f"
    return f"By hand, on {host}: {nodes}; docker volume ls -q --filter {label} | xargs -r docker volume rm"


def move_head(source: DockerApi, target: DockerApi, spec: ContainerSpec, image: str, operation: MoveHead) -> None:
    """Copy what the head keeps from one host to another, whose node is not the head yet."""
    kept = {name: source.read_file(spec.name, f"{STATE_FOLDER}/{name}") for name in KEPT}
    # Always one: what an earlier head left there must not be served again.
    found = {**request.FRESH, **{name: content for name, content in kept.items() if content is not None}}
    found[request.TAKEN_FILE] = carried(source.read_file(spec.name, f"{STATE_FOLDER}/{request.TAKEN_FILE}"))
    if operation.request:
        found[request.FILE] = operation.request.encode()
    # Last: with it the change is done, and is not looked for again.
    found[RECORD_FILE] = operation.record.document.encode()
    owner = owner_of(spec)
    target.volumes.create(spec.state_volume, owner.labels)
    body = volume_writer_body(owner, image, Mount(spec.state_volume, STATE_FOLDER))
    with temporary_container(target, spec.cluster, body) as door:
        target.put_files(door, STATE_FOLDER, {name: (content, 0o600) for name, content in found.items()})


def record_members(connection: HostConnection, operation: RecordMembers, emit: Emit) -> None:
    """Write what the head shall remember, and the request where it follows the change."""
    node, record = node_name(operation.record.cluster), operation.record
    if not operation.seen:
        # No head was there before whose record could be read: members of then may be left somewhere.
        old, _ = Record.read(connection.engine.read_file(node, f"{STATE_FOLDER}/{RECORD_FILE}"))
        kept = old.missing_from(record) if old and old.id == record.id else ()
        for member in kept:
            emit(Event("warning", f"{member.name} left the inventory; run vcluster up again to remove its node"))
        record = Record(record.cluster, record.id, (*record.members, *kept))
    files = {request.FILE: (operation.request.encode(), 0o600)} if operation.request else {}
    # Last: with it the change is done, and is not looked for again.
    files[RECORD_FILE] = (record.document.encode(), 0o600)
    connection.engine.put_files(node, STATE_FOLDER, files)
