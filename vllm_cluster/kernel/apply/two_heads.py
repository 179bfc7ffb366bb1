"""Where two hosts have what a head has, as while one moves, they agree, or a person decides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from vllm_cluster.kernel.checks.docker import two_heads
from vllm_cluster.kernel.checks.finding import Finding, ensure_no_errors
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.hosts.observe import MAX_RECORD
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.secret_files import read_kept, through_volume
from vllm_cluster.kernel.plan.desired import STATE_FOLDER
from vllm_cluster.kernel.plan.identity import Authority, Owner, authority, node_of
from vllm_cluster.kernel.plan.kept import Holder, holders_on
from vllm_cluster.kernel.plan.spec import ID, ROLE, Mount, node_name, state_volume
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.wire.keys import KeyFile
from vllm_cluster.wire.order import WANTED, Deployment, Order, read_order
from vllm_cluster.wire.parts import RECORD_FILE
from vllm_cluster.wire.reading import MAX_BYTES, RefusedDocument

# Of a host: each is read through a container, with the lease, and how many it lists is its own word.
KEY, MAX_VOLUMES = "api-key", 3
Asked = frozenset[Deployment] | None


def require_one_head(inventory: Inventory, facts: Mapping[str, HostFacts], fleet: Fleet) -> None:
    """Refuse a move onto a host that keeps a head's key or order, where those of the head of before are others.

    By labels and memory a move that broke off looks like a former head that was moved on, and none of them shows a
    rotation. What the files hold does: of a move it is the same.

    Raises:
        PreflightFailed: with the steps for both.
    """
    ensure_no_errors(list(_differing(inventory, facts, fleet)))


def _differing(inventory: Inventory, facts: Mapping[str, HostFacts], fleet: Fleet) -> Iterator[Finding]:
    mine, head, cluster = authority(inventory, facts), inventory.head_name, inventory.cluster
    if head not in facts or _is_head(cluster, facts[head]):
        return
    kept = _with_key(mine, facts[head])
    # Without one of its own it is not the head yet, and no other is silent about it before.
    claims = {name: _with_key(mine, seen) for name, seen in facts.items() if kept and name != head}
    for name, theirs in claims.items():
        runs = name in mine.heads and _is_head(cluster, facts[name])
        if not theirs or (node_of(cluster, facts[name]) and not runs):
            continue
        own, other = (_key(cluster, holders, facts, fleet) for holders in (kept, theirs))
        moved, now = (_order(inventory, facts[host], fleet, mine.id) for host in (head, name))
        what = ""
        if now is not None and moved != now and not (runs and moved is None):
            what = "another order" if moved is not None else "no order"
        if inventory.api_key is None and own.key and other.key and own.key != other.key:
            what = "another API key"
        if what:
            others = [one for one, rows in claims.items() if one != name and rows]
            known = [one for one in others if facts[one].was_head_of]
            text = f"{'its node is' if runs else 'by its volumes it was'} the head, and {head} keeps {what}"
            text += f"; {' and '.join(others)} has what a head has, too" if others else ""
            node = (command_line("docker", "rm", Option("-f"), node_name(cluster)),)
            volumes = (command_line("docker", "volume", "rm", one.volume) for one in theirs)
            # What was rotated is newer, and a host that this machine remembers is likelier than one that it does not.
            likely = bool(facts[name].was_head_of or not known) and (own.identity is None or other.identity is not None)
            yield two_heads(inventory, name, text, node if runs else volumes, likely=likely)


def _with_key(mine: Authority, facts: HostFacts) -> list[Holder]:
    """Those that hold an API key there: the node, or else volumes of the cluster."""
    every = [one for one in holders_on(mine.cluster, mine.id, facts.host, facts) if KEY in one.ids]
    volumes = [one for one in every if not one.has_node and mine.owns(facts.volumes[one.volume])]
    return [one for one in every if one.has_node] or volumes[:MAX_VOLUMES]


def _is_head(cluster: str, facts: HostFacts) -> bool:
    node = node_of(cluster, facts)
    return node is not None and node.labels.get(ROLE) == "head"


def _key(cluster: str, holders: list[Holder], facts: Mapping[str, HostFacts], fleet: Fleet) -> KeyFile:
    """The file of the API key of these; without a key where none of them has a whole one."""
    found = read_kept(cluster, holders, facts, fleet).get(KEY)
    return KeyFile.read(found.content if found else "")


def _order(inventory: Inventory, facts: HostFacts, fleet: Fleet, identity: str | None) -> Asked:
    """What a host without a head's node was asked to serve as the head; None where it never was that whole."""
    connection, cluster = fleet.connections[facts.host], inventory.cluster
    if node_of(cluster, facts):
        return _asked(connection, node_name(cluster))
    volume = state_volume(cluster)
    if facts.volumes.get(volume, {}).get(ID, "") != identity:
        return None
    images = [image.id for image in facts.images]
    with through_volume(connection, Owner(cluster, identity), Mount(volume, STATE_FOLDER), images) as door:
        return _asked(connection, door)


def _asked(connection: HostConnection, container: str) -> Asked:
    """What the order in the state that a container sees asks for.

    None where there is no record of members: that is written last of what moves.
    """
    docker = connection.docker
    if docker.read_file(container, f"{STATE_FOLDER}/{RECORD_FILE}", MAX_RECORD) is None:
        return None
    raw = docker.read_file(container, f"{STATE_FOLDER}/{WANTED}", MAX_BYTES)
    order = Order()
    with suppress(RefusedDocument):
        order = read_order(raw, f"{connection.name}: {WANTED}") if raw else order
    return frozenset(one.deployment for one in order.deployments)
