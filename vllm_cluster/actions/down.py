"""Take the cluster down: remove its containers and volumes from every host that can be reached, then verify."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from functools import partial

from vllm_cluster.actions.assess import ensure_no_errors
from vllm_cluster.actions.consent import Confirm, Consent, Stops, served_by
from vllm_cluster.checks.docker import foreign as foreign_findings
from vllm_cluster.checks.docker import name_taken
from vllm_cluster.checks.registry import engine_problem
from vllm_cluster.core.identity import Owner, cluster_id, foreign, is_leftover, is_of_cluster, is_volume_name
from vllm_cluster.core.kept import kept_secrets
from vllm_cluster.core.members import former, record_of
from vllm_cluster.core.spec import CLUSTER, node_name
from vllm_cluster.errors import FleetError, HostError, VclusterError, combine
from vllm_cluster.events import Emit, Event, waiting
from vllm_cluster.facts.host_facts import Container, HostFacts
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.connection import Fleet, HostConnection
from vllm_cluster.run.lease import Lease, in_order
from vllm_cluster.run.members import by_hand, look_at_former, unreadable
from vllm_cluster.run.observe import observe
from vllm_cluster.run.runtime import SYSTEM, Runtime
from vllm_cluster.text import count


def down(inventory: Inventory, emit: Emit, *, confirm: Confirm, wait: float = 0.0, runtime: Runtime = SYSTEM) -> int:
    """Remove the cluster's containers and volumes, by its id; returns how many were removed.

    Raises:
        Aborted, UsageError, PreflightFailed: something is served, and its stop was not confirmed; or a cluster
            of the same name that is not this one is on the hosts. Nothing was touched.
        Unreachable, FleetError: on some hosts it could not be done; on the others it was.
    """
    with Fleet(inventory, runtime) as fleet:
        emit(Event("phase", f"connecting to {count(len(inventory.hosts), 'host')}"))
        connected, failures = fleet.connect()
        facts, more = fleet.each(lambda connection: _observe(inventory, connection), connected)
        failures = {**failures, **more}
        for name, error in failures.items():
            emit(Event("failed", error.message, name))
        _refuse_foreign(inventory, facts)
        found = record_of(inventory, facts)
        if found and found.problem:
            emit(Event("warning", unreadable(found.problem), found.host))
        left, lost = look_at_former(inventory, fleet, former(inventory, facts, found.record if found else None))
        identity = cluster_id(inventory, facts)
        for name, error in lost.items():
            emit(Event("failed", f"{error.message}; {by_hand(Owner(inventory.cluster, identity), name)}", name))
        facts, failures = {**facts, **left}, {**failures, **lost}
        for finding in name_taken(inventory, facts):
            emit(Event("warning", f"{finding.text}; it is kept", finding.host))
        objects = _ClusterObjects(inventory, identity, facts)
        consent = Consent(confirm, inventory.cluster, then=" and remove the cluster")
        removed: dict[str, Counter[str]] | None = None
        while facts and removed is None:
            stops, lost = _stops(objects, fleet, facts)
            if not lost:
                consent.ask(stops)
                with Lease(in_order(fleet, facts), inventory.cluster, "down") as lease:
                    lost = _try_all(lease, wait, emit)
                    if not lost:
                        stops, lost = _stops(objects, fleet, facts)
                    if not lost and consent.covers(stops):
                        removed, lost = _remove(objects, fleet, facts, emit)
                    if lost:
                        lease.refuse_given_up()
            # A host that cannot be asked, leased or cleaned stays as it is; the others are cleaned.
            facts, failures = {name: entry for name, entry in facts.items() if name not in lost}, {**failures, **lost}
        total = sum(found.total() for found in (removed or {}).values())
        if failures:
            raise combine(failures).with_hosts(inventory.hosts)
        if inventory.api_key is None and "api-key" in kept_secrets(inventory, facts):
            emit(Event("note", "the API key is removed too; the next vcluster up makes a new one"))
    emit(Event("result", _result(inventory, facts, removed or {}), data={"removed": total}))
    return total


def _try_all(lease: Lease, wait: float, emit: Emit) -> dict[str, VclusterError]:
    """Take the lease; where that cannot be done, and why: then it is held nowhere."""
    try:
        lease.acquire(wait, waiting(emit))
    except (HostError, FleetError) as error:
        for name, failure in error.failures.items():
            emit(Event("failed", failure.message, name))
        return dict(error.failures)
    return {}


def _observe(inventory: Inventory, connection: HostConnection) -> HostFacts:
    facts = observe(inventory, connection)
    problem = engine_problem(facts)
    if problem:
        raise HostError(connection.name, problem.text, hint=problem.fix)
    return facts


def _refuse_foreign(inventory: Inventory, facts: Mapping[str, HostFacts]) -> None:
    """Refuse while something of this name is another cluster's; other names are not in the way."""
    named = {other.host for other in foreign(inventory, facts) if other.cluster == inventory.cluster}
    ensure_no_errors([finding for finding in foreign_findings(inventory, facts) if finding.host in named])


class _ClusterObjects:
    """What belongs to the cluster on a host, as it is now."""

    def __init__(self, inventory: Inventory, identity: str | None, facts: Mapping[str, HostFacts]) -> None:
        self.inventory, self.cluster, self._id = inventory, inventory.cluster, identity
        self._foreign = {container.id for seen in facts.values() for container in seen.strangers}
        self._label = f"{CLUSTER}={inventory.cluster}"

    def containers(self, connection: HostConnection) -> list[Container]:
        """Its node and its leftovers."""
        return [container for container in connection.engine.containers(self._label) if self._has(container)]

    def _has(self, container: Container) -> bool:
        if container.id in self._foreign:
            return False
        if container.name == node_name(self.cluster):
            return is_of_cluster(self.inventory, self._id, container.labels)
        return is_leftover(self.cluster, self._id, container)

    def volumes(self, connection: HostConnection) -> list[str]:
        """The names of its volumes; the state, whose labels name the owner of the rest, comes last."""
        found = connection.engine.volumes.labelled(self._label).items()
        mine = (labels for labels in found if is_volume_name(self.cluster, labels[0]))
        return sorted(name for name, labels in mine if is_of_cluster(self.inventory, self._id, labels))


def _stops(objects: _ClusterObjects, fleet: Fleet, hosts: Collection[str]) -> tuple[Stops, dict[str, VclusterError]]:
    """What is served now, and the hosts that do not answer any more; a worker does not know what its head serves."""
    containers, lost = fleet.each(objects.containers, hosts)
    try:
        return served_by(objects.cluster, containers, fleet), lost
    except HostError as error:
        return Stops(), {**lost, error.host: error}


def _remove(
    objects: _ClusterObjects, fleet: Fleet, hosts: Collection[str], emit: Emit
) -> tuple[dict[str, Counter[str]], dict[str, VclusterError]]:
    emit(Event("phase", "removing"))
    # Workers first: a head that goes first makes every worker log its loss.
    workers = [name for name in hosts if name != objects.inventory.head_name]
    removed, failed = fleet.each(lambda connection: _remove_all(objects, connection, emit), workers)
    head, last = fleet.each(lambda connection: _remove_all(objects, connection, emit), set(hosts) - set(workers))
    return {**removed, **head}, {**failed, **last}


def _remove_all(objects: _ClusterObjects, connection: HostConnection, emit: Emit) -> Counter[str]:
    """Remove what the cluster has on a host; returns how many of each kind were removed."""
    engine, removed = connection.engine, Counter[str]()
    for container in objects.containers(connection):
        emit(Event("start", f"removing {container.name}", connection.name))
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
    emit(Event("done", f"removed {_counted(removed)}", connection.name, {"removed": removed.total()}))
    return removed


def _counted(removed: Counter[str]) -> str:
    return ", ".join(count(number, kind) for kind, number in sorted(removed.items()) if number) or "nothing"


def _result(inventory: Inventory, facts: Mapping[str, HostFacts], removed: Mapping[str, Counter[str]]) -> str:
    if total := sum(removed.values(), Counter[str]()):
        hosts = count(sum(1 for found in removed.values() if found.total()), "host")
        return f"Removed cluster {inventory.cluster}: {_counted(total)} on {hosts}. Its history is deleted too."
    there = sorted({f"{other.cluster} on {other.host}" for other in foreign(inventory, facts)})
    seen = f"; others there: {', '.join(there)}" if there else ""
    return f"Nothing to remove: cluster {inventory.cluster} is not on these hosts{seen}."
