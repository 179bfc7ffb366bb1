"""Take the cluster down: remove its containers and volumes from every host that can be reached, then verify."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from vllm_cluster.actions import phases
from vllm_cluster.actions.assess import ensure_no_errors
from vllm_cluster.actions.consent import Confirm, Consent, Stops, batches_beside, served_by
from vllm_cluster.actions.phases import compare_again, confirm, lock, unlock
from vllm_cluster.checks.docker import foreign as foreign_findings
from vllm_cluster.checks.docker import name_taken
from vllm_cluster.core.diff import leave
from vllm_cluster.core.identity import Owner, cluster_id, foreign, is_leftover, is_of_cluster, is_volume_name
from vllm_cluster.core.kept import kept_secrets
from vllm_cluster.core.members import former, record_of
from vllm_cluster.core.pull import container_name
from vllm_cluster.core.spec import CLUSTER, ROLE, node_name
from vllm_cluster.errors import FleetError, HostError, LeftAlone, VclusterError, combine
from vllm_cluster.events import Emit, Event
from vllm_cluster.facts.host_facts import Container, HostFacts
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.connection import Fleet, HostConnection
from vllm_cluster.run.lease import in_order
from vllm_cluster.run.members import by_hand, look_at_former, unproven, unreadable
from vllm_cluster.run.node_handle import NodeHandle
from vllm_cluster.run.observe import observe, usable
from vllm_cluster.run.runtime import SYSTEM, Runtime
from vllm_cluster.text import count


def down(inventory: Inventory, emit: Emit, *, confirm: Confirm, wait: float = 0.0, runtime: Runtime = SYSTEM) -> int:
    """Remove the cluster's containers and volumes, by its id; returns how many were removed.

    Raises:
        Aborted, UsageError, PreflightFailed: something is served, or a batch is not fetched, and its end was not
            confirmed; or a cluster of the same name that is not this one is on the hosts. Nothing was touched.
        Unreachable, FleetError: on some hosts it could not be done; on the others it was.
    """
    state = DownState(
        inventory=inventory,
        emit=emit,
        runtime=runtime,
        verb="down",
        consent=Consent(confirm, inventory.cluster),
        then=" and remove the cluster",
        wait=wait,
    )
    return phases.run(DOWN, state, report=_report).total


@dataclass(frozen=True, kw_only=True)
class DownState(phases.ChangingState):
    """What the phases of `down` know.

    `facts` has the hosts that are cleaned: one that cannot be asked, leased or cleaned moves to `failures` and stays
    as it is, and the others are cleaned.
    """

    facts: Mapping[str, HostFacts] = field(default_factory=dict)
    failures: Mapping[str, VclusterError] = field(default_factory=dict)
    objects: ClusterObjects = phases.LATER
    removed: Mapping[str, Counter[str]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """How many containers and volumes were removed."""
        return sum(found.total() for found in self.removed.values())

    def stops(self) -> Stops:
        """What is served now; a worker does not know what its head serves."""
        containers, lost = self.fleet.each(self.objects.containers, self.facts)
        try:
            served = served_by(self.inventory.cluster, containers, self.fleet)
            served = _with_batches(self, served, containers)
        except HostError as error:
            lost = {**lost, error.host: error}
        if lost:
            raise phases.ChangedError(self.without(lost))
        return served

    def hosts(self) -> Sequence[HostConnection]:
        """Every host that answers."""
        return in_order(self.fleet, self.facts)

    def again(self) -> DownState:
        """Without the hosts that left the inventory and, under the lease, do not prove that they were members."""
        here, identity = self.inventory.hosts, self.objects.identity
        inside, outside = (
            {name: seen for name, seen in self.facts.items() if (name in here) is there} for there in (True, False)
        )
        alone = unproven(self.inventory, self.fleet, inside, outside, identity, locked=True)
        for name, error in alone.items():
            _report_left(self, name, error, identity)
        return self.without(alone)

    def without_lease(self, error: HostError | FleetError) -> phases.ChangedError:
        """The others are cleaned."""
        for name, failure in error.failures.items():
            self.emit(Event("failed", failure.message, name))
        return phases.ChangedError(self.without(error.failures))

    def without(self, lost: Mapping[str, VclusterError]) -> DownState:
        """The state without the hosts that failed.

        Raises:
            LeaseLost: they failed as one of them gave the lease up.
        """
        if lost and self.lease:
            self.lease.refuse_given_up()
        facts = {name: entry for name, entry in self.facts.items() if name not in lost}
        return replace(self, facts=facts, failures={**self.failures, **lost}, idle=not facts)


def connect(state: DownState) -> DownState:
    """Connect to the hosts; those that cannot be reached stay as they are."""
    fleet = state.opened.enter_context(Fleet(state.inventory, state.runtime))
    state.emit(Event("phase", f"connecting to {count(len(state.inventory.hosts), 'host')}"))
    return replace(state, fleet=fleet, failures=fleet.connect()[1])


def look(state: DownState) -> DownState:
    """Look at every host, and refuse while something of this name is another cluster's."""
    there = [name for name in state.fleet.names if name not in state.failures]
    facts, more = state.fleet.each(lambda connection: usable(observe(state.inventory, connection)), there)
    failures = {**state.failures, **more}
    for name, error in failures.items():
        state.emit(Event("failed", error.message, name))
    _refuse_foreign(state.inventory, facts)
    return replace(state, facts=facts, failures=failures)


def look_at_former_hosts(state: DownState) -> DownState:
    """Look at the hosts that left the inventory, and find what belongs to the cluster."""
    inventory, facts = state.inventory, state.facts
    found = record_of(inventory, facts)
    if found and found.problem:
        state.emit(Event("warning", unreadable(found.problem), found.host))
    identity = cluster_id(inventory, facts)
    left = former(inventory, facts, found.record if found else None)
    outside, lost = look_at_former(inventory, state.fleet, facts, left, identity)
    for name, error in lost.items():
        _report_left(state, name, error, identity)
    held = {name: seen for name, seen in outside.items() if any(leave(inventory.cluster, identity or "", name, seen))}
    facts = {**facts, **held}
    for finding in name_taken(inventory, facts):
        state.emit(Event("warning", f"{finding.message}; it is kept", finding.host))
    objects = ClusterObjects(inventory, identity, facts)
    return replace(state, facts=facts, objects=objects).without(lost)


def _report_left(state: DownState, name: str, error: VclusterError, identity: str | None) -> None:
    ways = by_hand(Owner(state.inventory.cluster, identity), name)
    if isinstance(error, LeftAlone):
        error.hint = f"if {name} is of this cluster, add it to the inventory\nvcluster down"
        ways = "if it is of this cluster, add it to the inventory, then: vcluster down"
    state.emit(Event("failed", f"{error.message}; {ways}", name))


def remove(state: DownState) -> DownState:
    """Remove the containers and volumes. Workers first: a head that goes first makes every worker log its loss."""
    if state.idle:
        return state
    state.emit(Event("phase", "removing"))
    head = {state.inventory.head_name} & set(state.facts)
    removed: dict[str, Counter[str]] = {}
    lost: dict[str, VclusterError] = {}
    for hosts in (set(state.facts) - head, head):
        done, failed = state.fleet.each(lambda connection: _remove_all(state, connection), hosts)
        removed, lost = {**removed, **done}, {**lost, **failed}
    return replace(state.without(lost), removed=removed)


def require_all(state: DownState) -> DownState:
    """Raise what failed on some hosts, once the others are clean."""
    if state.failures:
        raise combine(state.failures).with_hosts(state.inventory.hosts)
    return state


DOWN = (connect, look, look_at_former_hosts, confirm, lock, compare_again, remove, unlock, require_all)


def _refuse_foreign(inventory: Inventory, facts: Mapping[str, HostFacts]) -> None:
    """Refuse while something of this name is another cluster's; other names are not in the way."""
    named = {other.host for other in foreign(inventory, facts) if other.cluster == inventory.cluster}
    ensure_no_errors([finding for finding in foreign_findings(inventory, facts) if finding.host in named])


class ClusterObjects:
    """What belongs to the cluster on a host, as it is now."""

    def __init__(self, inventory: Inventory, identity: str | None, facts: Mapping[str, HostFacts]) -> None:
        self.inventory, self.cluster, self.identity = inventory, inventory.cluster, identity
        self._foreign = {container.id for seen in facts.values() for container in seen.other_containers}
        self._label = f"{CLUSTER}={inventory.cluster}"

    def containers(self, connection: HostConnection) -> list[Container]:
        """Its node, its pull and its leftovers."""
        return [container for container in connection.engine.containers(self._label) if self._has(container)]

    def _has(self, container: Container) -> bool:
        if container.id in self._foreign:
            return False
        if container.name in (node_name(self.cluster), container_name(self.cluster)):
            return is_of_cluster(self.inventory, self.identity, container.labels)
        return is_leftover(self.cluster, self.identity, container)

    def volumes(self, connection: HostConnection) -> list[str]:
        """The names of its volumes; last the state, whose labels name the owner of the rest.

        On a host outside the inventory that is proved by what the volumes of secrets hold.
        """
        found = connection.engine.volumes.labelled(self._label).items()
        mine = (labels for labels in found if is_volume_name(self.cluster, labels[0]))
        names = [name for name, labels in mine if is_of_cluster(self.inventory, self.identity, labels)]
        return sorted(names, reverse=connection.name not in self.inventory.hosts)


def _remove_all(state: DownState, connection: HostConnection) -> Counter[str]:
    """Remove what the cluster has on a host; returns how many of each kind were removed."""
    engine, objects, removed = connection.engine, state.objects, Counter[str]()
    for container in objects.containers(connection):
        state.emit(Event("start", f"removing {container.name}", connection.name))
        engine.remove(container.id)
        removed["container"] += 1
    for volume in objects.volumes(connection):
        engine.volumes.remove(volume)
        removed["volume"] += 1
    removed["volume"] += engine.volumes.remove_unlabelled(
        node_name(objects.cluster), partial(is_volume_name, objects.cluster)
    )
    left = [container.name for container in objects.containers(connection)] + objects.volumes(connection)
    if left:
        raise HostError(connection.name, f"down: not removed: {', '.join(left)}", hint="vcluster down")
    state.emit(Event("done", f"removed {_counted(removed)}", connection.name, {"removed": removed.total()}))
    return removed


def _with_batches(state: DownState, stops: Stops, containers: Mapping[str, Sequence[Container]]) -> Stops:
    """The same with the batches of a head, running or not, whose answers go with it."""
    cluster = state.inventory.cluster
    for host, there in containers.items():
        for one in there:
            if one.name == node_name(cluster) and one.labels.get(ROLE) == "head":
                stops = batches_beside(stops, NodeHandle(state.fleet.connections[host], cluster), one.state)
    return stops


def _counted(removed: Counter[str]) -> str:
    return ", ".join(count(number, kind) for kind, number in sorted(removed.items()) if number) or "nothing"


def _report(state: DownState) -> None:
    if state.inventory.api_key is None and "api-key" in kept_secrets(state.inventory, state.facts):
        state.emit(Event("note", "the API key is removed too; the next vcluster up makes a new one"))
    state.emit(Event("result", _result(state), data={"removed": state.total}))


def _result(state: DownState) -> str:
    cluster = state.inventory.cluster
    if state.total:
        hosts = count(sum(1 for found in state.removed.values() if found.total()), "host")
        what = _counted(sum(state.removed.values(), Counter[str]()))
        return f"Removed cluster {cluster}: {what} on {hosts}. Its history is deleted too."
    there = sorted({f"{other.cluster} on {other.host}" for other in foreign(state.inventory, state.facts)})
    seen = f"; others there: {', '.join(there)}" if there else ""
    return f"Nothing to remove: cluster {cluster} is not on these hosts{seen}."
