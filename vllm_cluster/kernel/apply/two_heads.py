"""Where two hosts have what a head has, as while one moves, they agree, or a person decides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from vllm_cluster.kernel.checks.docker import too, two_heads
from vllm_cluster.kernel.checks.finding import Finding, ensure_no_errors
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.hosts.observe import MAX_RECORD
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.secret_files import read_kept, through_volume
from vllm_cluster.kernel.plan.desired import STATE_FOLDER
from vllm_cluster.kernel.plan.identity import Authority, Owner, authority, is_head, node_of
from vllm_cluster.kernel.plan.kept import Holder, holders_on
from vllm_cluster.kernel.plan.spec import ID, Mount, node_name, state_volume
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


class _State(NamedTuple):
    """What a host keeps as the head: the key, and what it is asked to serve, None where it never was the head whole."""

    key: KeyFile
    asked: Asked


def _differing(inventory: Inventory, facts: Mapping[str, HostFacts], fleet: Fleet) -> Iterator[Finding]:
    mine, head, cluster = authority(inventory, facts), inventory.head_name, inventory.cluster
    if head not in facts or is_head(cluster, facts[head]):
        return
    kept = _with_key(mine, facts[head])
    # Without a key of its own it is not the head yet, and the check before has named whoever else has one.
    claims = {name: _with_key(mine, seen) for name, seen in facts.items() if kept and name != head}
    claims = {name: holders for name, holders in claims.items() if holders}
    running = {name for name in mine.heads if is_head(cluster, facts[name])}
    own: _State | None = None
    for name, theirs in claims.items():
        # Another node is a worker's, or was named before, too.
        if node_of(cluster, facts[name]) and name not in running:
            continue
        own = own or _state(inventory, facts, fleet, head, kept)
        other = _state(inventory, facts, fleet, name, theirs)
        if not (what := _difference(own, other, runs=name in running, given=inventory.api_key is not None)):
            continue
        others = [one for one in claims if one != name]
        is_known = facts[name].was_head_of or not any(facts[one].was_head_of for one in others)
        # What was rotated is newer, and a host that this machine remembers is likelier than one that it does not.
        likely = bool(is_known) and (own.key.identity is None or other.key.identity is not None)
        text, gone = "its node is", [command_line("docker", "rm", Option("-f"), node_name(cluster))]
        if name not in running:
            text, gone = "by its volumes it was", [command_line("docker", "volume", "rm", one.volume) for one in theirs]
        yield two_heads(inventory, name, f"{text} the head, and {head} keeps {what}{too(others)}", gone, likely=likely)


def _difference(own: _State, other: _State, *, runs: bool, given: bool) -> str:
    """What the inventory's head keeps that is not what the other host has; a `given` key is the inventory's own.

    Of one that `runs` all is copied that is not there yet.
    """
    if not given and own.key.key and other.key.key and own.key.key != other.key.key:
        return "another API key"
    if other.asked in (None, own.asked) or (runs and own.asked is None):
        return ""
    return "another order" if own.asked is not None else "no order"


def _with_key(mine: Authority, facts: HostFacts) -> list[Holder]:
    """Those that hold an API key there: the node, or else volumes of the cluster."""
    every = [one for one in holders_on(mine.cluster, mine.id, facts.host, facts) if KEY in one.ids]
    volumes = [one for one in every if not one.has_node and mine.owns(facts.volumes[one.volume])]
    return [one for one in every if one.has_node] or volumes[:MAX_VOLUMES]


def _state(
    inventory: Inventory, facts: Mapping[str, HostFacts], fleet: Fleet, host: str, holders: list[Holder]
) -> _State:
    """Read what a host keeps; without a key where none of its holders has a whole one."""
    found = read_kept(inventory.cluster, holders, facts, fleet).get(KEY)
    identity = authority(inventory, facts).id
    return _State(KeyFile.read(found.content if found else ""), _order(inventory, facts[host], fleet, identity))


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
