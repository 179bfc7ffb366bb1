"""Waits until the nodes match the plan, and raises at once when one of them cannot."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from vllm_cluster.kernel.apply.members import look_by_hand
from vllm_cluster.kernel.errors import HostError, LeftAlone, NodesNotJoined, TagMoved, Unreachable, combine
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.images.host_images import OneImage, find_held_image
from vllm_cluster.kernel.node.handle import NodeHandle, NodeState, refuse_failing
from vllm_cluster.kernel.plan.images import node_image_name
from vllm_cluster.kernel.plan.node_status import GroupMembership, absent, compare_members, last_words
from vllm_cluster.kernel.plan.plan import CreateNode, Plan
from vllm_cluster.kernel.plan.spec import BASE_IMAGE

POLL = 0.2
# The first `ray start` on a busy host with cold bytecode took 75 s.
JOIN_SECONDS = 180.0
# A worker that cannot even connect to the head for this long has no way to it.
CONNECT_SECONDS = 30.0
# Ray counts a node that has gone until it notices, after 3 x 11 s at most.
GONE_SECONDS = 40.0


def ensure_same_image(image: str, wanted: OneImage, plan: Plan, fleet: Fleet, *, known: bool) -> None:
    """Each node is made from this image, or will be: by its node image, as the name may mean another one there.

    `known` is whether the plan had it: else the head has got it since.

    Raises:
        TagMoved: nodes that the plan keeps are made from another than the head has got.
        HostError, FleetError: on some hosts it is another one.
    """
    new = {one.host: one.spec.requirements for one in plan.operations() if isinstance(one, CreateNode)}

    def other(connection: HostConnection) -> str | None:
        """The id of another image; None where it is the same."""
        if connection.name not in new:
            node = NodeHandle(connection, plan.cluster).container()
            made_from = node.labels.get(BASE_IMAGE) if node else None
            return made_from if made_from and not wanted.is_it(connection, made_from) else None
        base = wanted.on(connection) or wanted.id
        if connection.docker.image_info(node_image_name(base, new[connection.name])):
            return None
        there = find_held_image(connection, image)
        return None if there and wanted.is_it(connection, there.id) else there.id if there else ""

    odd = {host: found for host, found in fleet.all(other).items() if found is not None}
    if odd and not known and not odd.keys() & new:
        text = f"{image} is {wanted.id[:19]} now, and the nodes of {', '.join(odd)} are made from another image"
        raise TagMoved(plan.head, text, hint="vcluster up")
    if odd:
        hint, texts = "vcluster image push\nvcluster up", {host: found[:19] or "gone" for host, found in odd.items()}
        raise combine(
            {
                host: HostError(host, f"{image} is {text} here and {wanted.id[:19]} on the other hosts", hint=hint)
                for host, text in texts.items()
            }
        )


def await_head(connection: HostConnection, plan: Plan, emit: Emit) -> None:
    """Until the head answers.

    Raises:
        HostError: it will not, and why.
    """
    deadline = connection.runtime.after(JOIN_SECONDS)
    before: dict[str, int] = {}
    shown = ""
    while True:
        node = NodeHandle(connection, plan.cluster).state()
        refuse_failing(connection.name, node, before)
        if node.status and node.status.group.state == "up":
            return
        if (text := _waiting_for_head(node)) != shown:
            emit(Event("progress", text, connection.name))
            shown = text
        if deadline.left() <= 0:
            text = f"the head was not ready within {JOIN_SECONDS:.0f} s: {_waiting_for_head(node)}"
            raise NodesNotJoined(connection.name, text, hint="vcluster explain")
        connection.runtime.clock.sleep(POLL)


def await_gpus(fleet: Fleet, plan: Plan, emit: Emit, former: Collection[str] = ()) -> None:
    """Until Ray counts exactly the planned GPUs at the planned addresses, and none of them is of a former node.

    `former` are the ids in Ray of nodes that this run replaces.

    Raises:
        HostError: they will not come, or others came, and why.
    """
    clock, deadline = fleet.runtime.clock, fleet.runtime.after(JOIN_SECONDS)
    started = clock.monotonic()
    shown, before = "", dict[str, int]()
    while True:
        nodes = fleet.all(lambda connection: NodeHandle(connection, plan.cluster).state())
        found = _joined(plan, fleet, nodes, former)
        away = _away(plan, fleet, nodes)
        if found.complete and not away:
            emit(Event("progress", f"GPUs {found.have}/{found.want}", data={"gpus": [found.have, found.want]}))
            return
        seconds_so_far = clock.monotonic() - started
        # No other host can join while Ray is down on the head: its last words are the answer.
        refuse_failing(plan.head, nodes[plan.head], before)
        head_up = _is_up(nodes[plan.head])
        for name, node in nodes.items() if head_up else ():
            refuse_failing(name, node, before)
            _ensure_connected(name, node, seconds_so_far)
        _refuse_outsider(plan, found, seconds_so_far)
        why = (
            _explain(found, {**plan.lost, **fleet.addresses}, nodes, away)
            if head_up
            else _waiting_for_head(nodes[plan.head])
        )
        text = f"GPUs {found.have}/{found.want}: {why}"
        if text != shown:
            emit(Event("progress", text, data={"gpus": [found.have, found.want]}))
            shown = text
        if deadline.left() <= 0:
            hint = "vcluster status\nvcluster explain"
            text = f"the planned GPUs are not there after {JOIN_SECONDS:.0f} s: {text}"
            late = [fleet.addresses[address] for address in found.missing if address in fleet.addresses]
            late = sorted({*late, *away})
            raise NodesNotJoined(plan.head, text, hint=hint, cut_off=late if head_up else ())
        clock.sleep(POLL)


def members_at(addresses: Collection[str], head: NodeState) -> frozenset[str]:
    """The ids of the nodes that Ray on the head counts there as living."""
    nodes = head.status.group.nodes if head.status else ()
    return frozenset(node.id for node in nodes if node.alive and node.address in addresses)


def _joined(plan: Plan, fleet: Fleet, nodes: Mapping[str, NodeState], former: Collection[str]) -> GroupMembership:
    """What Ray on the head counts, against the plan.

    Ray counts a node that has ended for up to half a minute more, at the address of the one in its place, whose GPUs
    these would seem to be: nothing counts at an address whose own Ray is not up, or where a former node still does.
    """
    head = nodes[plan.head]
    counted = head.status.group.nodes if head.status else ()
    late = {node.address for node in counted if node.alive and node.id in former}
    late |= {address for address, name in fleet.addresses.items() if name in nodes and not _may_be_up(nodes[name])}
    return compare_members(plan.gpus, [node for node in counted if node.address not in late])


def _away(plan: Plan, fleet: Fleet, nodes: Mapping[str, NodeState]) -> dict[str, str]:
    """Those of the planned nodes that the head's roll has not as here, and what each knows of its way there."""
    status = nodes[plan.head].status
    found = absent(status.roll if status else None, {at: fleet.addresses.get(at, at) for at in plan.gpus})
    rolls = {name: node.status.roll for name, node in nodes.items() if node.status}
    errors = {name: roll.error for name, roll in rolls.items() if roll and roll.error}
    return {name: f"{why} ({errors[name]})" if name in errors else why for name, why in found.items()}


def _may_be_up(node: NodeState) -> bool:
    """Whether Ray may be up there; a node program that is stopped cannot report it."""
    return node.status is not None and node.status.group.state in ("up", "unknown")


def _explain(
    found: GroupMembership, names: Mapping[str, str], nodes: Mapping[str, NodeState], away: Mapping[str, str]
) -> str:
    missing = [names.get(address, address) for address in found.missing]
    parts = [f"waiting for {name}{_trouble(nodes.get(name))}" for name in missing]
    parts += [f"{names.get(a, a)} joined but is not in the inventory" for a in found.foreign]
    parts += [f"{names.get(a, a)} has a different number of GPUs than planned" for a in found.wrong]
    parts += [f"{name}: {why}" for name, why in away.items() if name not in missing]
    return ", ".join(parts) or "waiting for the nodes"


def _trouble(node: NodeState | None) -> str:
    """What a worker knows of its way to the head."""
    ray = node.status.group if node and node.status else None
    return f" ({last_words(ray)})" if ray and ray.error else ""


def _is_up(node: NodeState) -> bool:
    return node.status is not None and node.status.group.state == "up"


def _waiting_for_head(node: NodeState) -> str:
    ray = node.status.group if node.status else None
    return f"{ray.who} is {ray.state} on the head: {last_words(ray)}" if ray and ray.error else "waiting for the head"


def _ensure_connected(host: str, node: NodeState, seconds: float) -> None:
    ray = node.status.group if node.status else None
    # One that joined before its way to the head was cut is up, and knows of it, too.
    if ray and ray.error and ray.state in ("waiting", "up") and seconds > CONNECT_SECONDS:
        raise NodesNotJoined(
            host,
            f"no connection to the head for {seconds:.0f} s ({ray.error})",
            hint="vcluster check",  # it names the closed ports and the command that opens them
            cut_off=[host],
        )


def _refuse_outsider(plan: Plan, found: GroupMembership, seconds: float) -> None:
    """Refuse a node outside the inventory that keeps an otherwise complete Ray from being what is planned."""
    if found.missing or found.wrong:
        return
    for address in found.foreign:
        if host := plan.lost.get(address):
            text = f"Ray still reports its node at {address}; it left the inventory and "
            if host in plan.alone:
                raise LeftAlone(host, f"{text}is left alone", hint=plan.alone[host])
            text += "cannot be reached"
            raise Unreachable(host, text, hint=f"{look_by_hand(plan.cluster, host)}\nvcluster up")
        if seconds > GONE_SECONDS:
            text = f"Ray reports a node at {address}, which is not in the inventory"
            hint = f"{look_by_hand(plan.cluster, address)}, or add that host to the inventory\nvcluster up"
            raise HostError(plan.head, text, hint=hint)
