"""Where two hosts have what a head has, as while one moves, they agree, or a person decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from vllm_cluster.kernel.checks.finding import ensure_no_errors
from vllm_cluster.kernel.checks.heads import which_head
from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.hosts.observe import MAX_RECORD
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.history import MAX_FILE, last_line
from vllm_cluster.kernel.node.secret_files import read_kept, through_volume
from vllm_cluster.kernel.plan.claims import KEY, Claim, find_claims
from vllm_cluster.kernel.plan.desired import STATE_FOLDER
from vllm_cluster.kernel.plan.history import AUDIT_FILE
from vllm_cluster.kernel.plan.identity import Owner, authority, node_of
from vllm_cluster.kernel.plan.spec import ID, Mount, node_name, state_volume
from vllm_cluster.kernel.text import when
from vllm_cluster.wire.keys import KeyFile
from vllm_cluster.wire.order import WANTED, Deployment, Order, read_order
from vllm_cluster.wire.parts import RECORD_FILE
from vllm_cluster.wire.reading import MAX_BYTES, RefusedDocument


class _State(NamedTuple):
    """What a host keeps as the head: the key, what it serves, None where it never was the head whole, and since when.

    `changed` is by the host's own word, in seconds since 1970.
    """

    key: str = ""
    asked: frozenset[Deployment] | None = None
    changed: float | None = None


def require_one_head(inventory: Inventory, facts: Mapping[str, HostFacts], fleet: Fleet) -> None:
    """Refuse what would replace the key or the order that another host has as the head, where those differ.

    By labels and memory a move that broke off looks like a former head that was moved on, and none of them shows a
    rotation. What the files hold does: of a move it is the same.

    Raises:
        PreflightFailed: with the steps for each.
    """
    claims = [] if inventory.keep is not None else find_claims(inventory, facts)
    if len(claims) < 2:
        return
    own = next((one for one in claims if one.host == inventory.head_name), None)
    base = own or next(one for one in claims if one.trusted)
    states = {base.host: _state(inventory, facts, fleet, base)}
    found: dict[str, str] = {}
    for one in claims:
        if one is base:
            continue
        try:
            states[one.host] = _state(inventory, facts, fleet, one)
        except HostError as error:
            # Else a host that only claims it would keep every run from its end.
            found[one.host] = f"what it has cannot be read: {error.message}"
            continue
        what = _difference(states[base.host], states[one.host], one, given=inventory.api_key is not None)
        found |= {one.host: f"{what} than {base.host}"} if what else {}
    if found:
        texts = {one.host: [found.get(one.host), _last(states.get(one.host))] for one in claims}
        more = {host: ", ".join(filter(None, parts)) for host, parts in texts.items()}
        ensure_no_errors([which_head(inventory, facts, _by_last_change(claims, states), more)])


def _by_last_change(claims: Sequence[Claim], states: Mapping[str, _State]) -> Sequence[Claim]:
    """The claims in another order: of hosts that this machine made the head, the one in use is likelier.

    A move that broke off may be used, and its key rotated; a copy of the history has the same last line.
    """
    made = [one for one in claims if one.known > 1 or one.began]
    times = {one.host: states[one.host].changed for one in made if one.host in states}
    if len(made) < 2 or not all(times.get(one.host) for one in made):
        return claims
    return sorted(claims, key=lambda one: (not one.named_by, one not in made, -(times.get(one.host) or 0.0)))


def _difference(base: _State, other: _State, claim: Claim, *, given: bool) -> str:
    """What another host has otherwise than the one whose key and order are kept; a `given` key is the inventory's own.

    What is not there yet is copied from one that is trusted: its key, and of a head that runs its order.
    """
    copied = claim.trusted and not base.key
    if not given and other.key and other.key != base.key and not copied:
        return "it has another API key"
    if other.asked in (None, base.asked) or (claim.trusted and claim.runs and base.asked is None):
        return ""
    return "it has another order"


def _last(state: _State | None) -> str:
    return f"last changed {when(state.changed)}" if state and state.changed is not None else ""


def _state(inventory: Inventory, facts: Mapping[str, HostFacts], fleet: Fleet, claim: Claim) -> _State:
    """Read what a host keeps; without a key where none of its holders has a whole one."""
    cluster, identity = inventory.cluster, authority(inventory, facts).id
    connection, seen = fleet.connections[claim.host], facts[claim.host]
    kept = read_kept(cluster, claim.holders, facts, fleet).get(KEY)
    key = KeyFile.read(kept.content if kept else "").key
    if node_of(cluster, seen):
        return _through(connection, node_name(cluster), key)
    volume = state_volume(cluster)
    if seen.volumes.get(volume, {}).get(ID, "") != identity:
        return _State(key)
    images = [image.id for image in seen.images]
    with through_volume(connection, Owner(cluster, identity), Mount(volume, STATE_FOLDER), images) as door:
        return _through(connection, door, key)


def _through(connection: HostConnection, container: str, key: str) -> _State:
    """What the state that a container sees asks for, and when a person last changed it.

    No order where there is no record of members: that is written last of what moves.
    """
    docker = connection.docker
    lines = docker.read_file(container, f"{STATE_FOLDER}/{AUDIT_FILE}", MAX_FILE)
    last = last_line(lines, f"{connection.name}: {AUDIT_FILE}")
    changed = last.time if last else None
    if docker.read_file(container, f"{STATE_FOLDER}/{RECORD_FILE}", MAX_RECORD) is None:
        return _State(key, changed=changed)
    raw = docker.read_file(container, f"{STATE_FOLDER}/{WANTED}", MAX_BYTES)
    order = Order()
    with suppress(RefusedDocument):
        order = read_order(raw, f"{connection.name}: {WANTED}") if raw else order
    return _State(key, frozenset(one.deployment for one in order.deployments), changed)
