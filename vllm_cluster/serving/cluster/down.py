"""Take the cluster down: remove its containers and volumes from every host that can be reached, then verify."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from vllm_cluster.kernel.apply.members import by_hand, look_at_former, unproven, unreadable
from vllm_cluster.kernel.checks.docker import name_taken
from vllm_cluster.kernel.checks.docker import warn_of_foreign as foreign_findings
from vllm_cluster.kernel.checks.finding import ensure_no_errors
from vllm_cluster.kernel.docker.one_by_one import OneByOne
from vllm_cluster.kernel.errors import FleetError, HostError, LeftAlone, TimedOut, VclusterError, combine
from vllm_cluster.kernel.events import Emit, Event, show_waiting_once
from vllm_cluster.kernel.facts.docker_objects import Container
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.hosts.observe import observe, usable
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.lease.lease import Lease, in_order
from vllm_cluster.kernel.models.weights import status
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.plan.claims import find_claims
from vllm_cluster.kernel.plan.diff import grace_of, graces_of, remove_member
from vllm_cluster.kernel.plan.identity import (
    authority,
    find_foreign,
    is_head,
    is_leftover,
    is_volume_name,
)
from vllm_cluster.kernel.plan.kept import kept_secrets
from vllm_cluster.kernel.plan.members import former, record_of, ways_of
from vllm_cluster.kernel.plan.pull import container_name
from vllm_cluster.kernel.plan.spec import CLUSTER, ID, node_name
from vllm_cluster.kernel.text import and_more, count
from vllm_cluster.serving.consent import Confirm, Consent, batches_beside, served_by
from vllm_cluster.serving.stops import Stops


def remove_cluster(
    inventory: Inventory, emit: Emit, *, confirm: Confirm, wait: float = 0.0, runtime: Runtime = SYSTEM
) -> int:
    """Remove the cluster's containers and volumes, by its id; returns how many were removed.

    Raises:
        Aborted, UsageError, PreflightFailed: something is served or pulled, or a batch is not fetched, and its end was
            not confirmed; or a cluster of the same name that is not this one is on the hosts. Nothing was touched.
        Unreachable, FleetError: on some hosts it could not be done; on the others it was.
    """
    consent = Consent(confirm, inventory.cluster)
    with Fleet(inventory, runtime) as fleet:
        removal = Removal(inventory, fleet, emit)
        while (stops := removal.stops()) is not None:
            what = f" and remove cluster {inventory.cluster}{removal.losses}{removal.places}"
            consent.ask(stops, what, always=removal.anything)
            with Lease(in_order(fleet, removal.facts), inventory.cluster, "down") as lease:
                if removal.lock(lease, wait) and removal.is_covered(consent):
                    removal.remove()
                    break
        removal.report(stops or Stops())
        if removal.failures:
            raise removal.unfinished()
        if removal.identity:
            runtime.visited.forget(inventory.cluster, removal.identity, ways_of(inventory))
    return removal.total


class Removal:
    """What is removed, and where.

    `facts` has the hosts that are cleaned: one that cannot be asked, leased or cleaned moves to `failures` and stays
    as it is, and the others are cleaned.
    """

    def __init__(self, inventory: Inventory, fleet: Fleet, emit: Emit) -> None:
        """Look at every host that can be reached, and at those that left the inventory.

        Raises:
            PreflightFailed: something of this name is another cluster's.
        """
        self.inventory, self.fleet, self.emit = inventory, fleet, emit
        self.cluster, self._label = inventory.cluster, f"{CLUSTER}={inventory.cluster}"
        self._removed: dict[str, Counter[str]] = {}
        self._lease: Lease | None = None
        emit(Event("phase", f"connecting to {count(len(inventory.hosts), 'host')}"))
        self.failures = fleet.connect()[1]
        there = [name for name in fleet.names if name not in self.failures]
        self.facts, more = fleet.each(lambda connection: usable(observe(inventory, connection)), there)
        self.failures |= more
        for name, error in self.failures.items():
            emit(Event("failed", error.message, name))
        _refuse_foreign(inventory, self.facts)
        self._mine = authority(inventory, self.facts)
        self._look_at_former_hosts()
        self._foreign = {container.id for seen in self.facts.values() for container in seen.other_containers}

    @property
    def total(self) -> int:
        """How many containers and volumes were removed."""
        return sum(found.total() for found in self._removed.values())

    @property
    def identity(self) -> str | None:
        """The id of the cluster."""
        return self._mine.id

    @property
    def anything(self) -> bool:
        """Whether anything of the cluster was found."""
        return any(
            seen.volumes or any(self._has(name, one) for one in seen.containers) for name, seen in self.facts.items()
        )

    @property
    def losses(self) -> str:
        """What goes with the cluster's head and comes back with no other, for the question."""
        return f" with its {'API key and ' if self._loses_key else ''}history" if self._loses_head else ""

    @property
    def places(self) -> str:
        """Where it is removed, for the question; empty where that is everywhere."""
        return f" from {', '.join(self.facts)} and not from {', '.join(self.failures)}" if self.failures else ""

    @property
    def _loses_head(self) -> bool:
        return any(name in self.facts for name in self._mine.heads)

    @property
    def _loses_key(self) -> bool:
        made = self.inventory.api_key is None and "api-key" in kept_secrets(self.inventory, self.facts)
        return made and self._loses_head

    def _look_at_former_hosts(self) -> None:
        inventory, facts = self.inventory, self.facts
        found = record_of(inventory, facts)
        if found and found.problem:
            self.emit(Event("warning", unreadable(found.problem), found.host))
        left = former(inventory, facts, found.record if found else None)
        outside, lost = look_at_former(inventory, self.fleet, facts, left, self._mine.id)
        held = {
            name for name, seen in outside.items() if any(remove_member(self.cluster, self._mine.id or "", name, seen))
        }
        self.facts = {**facts, **{name: outside[name] for name in held}}
        for finding in name_taken(inventory, self.facts):
            self.emit(Event("warning", f"{finding.message}; it is kept", finding.host))
        self._leave_alone(lost)

    def _leave_alone(self, lost: Mapping[str, VclusterError]) -> None:
        for name, error in lost.items():
            ways = by_hand(self.inventory, name)
            if isinstance(error, LeftAlone):
                error.hint = f"if {name} is of this cluster, add it to the inventory\nvcluster down"
                ways = "if it is of this cluster, add it to the inventory, then: vcluster down"
            self.emit(Event("failed", f"{error.message}; {ways}", name))
        self._lose(lost)

    def _lose(self, lost: Mapping[str, VclusterError]) -> None:
        """Leave out the hosts that failed.

        Raises:
            LeaseLost: they failed as one of them gave the lease up.
        """
        if lost and self._lease:
            self._lease.refuse_given_up()
        self.facts = {name: entry for name, entry in self.facts.items() if name not in lost}
        self.failures = {**self.failures, **lost}

    def stops(self) -> Stops | None:
        """What is served or pulled now, and the batches that go with the head; None where no host is left to clean."""
        while self.facts:
            # Each is asked: a worker does not know what its head serves.
            containers, lost = self.fleet.each(self._containers, self.facts)
            try:
                stops = served_by(self.cluster, containers, self.fleet, self._mine.heads)
                for host in self._mine.heads:
                    for one in containers.get(host, ()):
                        if one.name == node_name(self.cluster):
                            node = NodeHandle(self.fleet.connections[host], self.cluster)
                            stops = batches_beside(stops, node, one.state)
            except HostError as error:
                lost = {**lost, error.host: error}
            pulls, failed = self._pulls(containers)
            if not {**lost, **failed}:
                outside = {host: to for host, to in self.fleet.outside.items() if host in self.facts}
                inside = {host: seen for host, seen in self.facts.items() if host in self.inventory.hosts}
                claims = find_claims(self.inventory, inside)
                others = tuple(one.host for one in claims if one.host not in self._mine.heads)
                return replace(stops, pulls=pulls, outside=outside, given_up=others)
            lost = {**lost, **failed}
            self._lose(lost)
        return None

    def _pulls(self, containers: Mapping[str, list[Container]]) -> tuple[dict[str, str], dict[str, VclusterError]]:
        """What is being pulled by host, and why that cannot be found out on some."""
        name = container_name(self.cluster)
        there = [host for host, found in containers.items() if any(one.name == name for one in found)]
        found, failed = self.fleet.each(lambda connection: status(connection, self.cluster), there)
        return {host: one.name or "a model" for host, one in found.items() if not one.over}, failed

    def lock(self, lease: Lease, wait: float) -> bool:
        """Take the lease; whether every host gave it, else the others are cleaned."""
        self._lease = lease
        try:
            lease.acquire(wait, show_waiting_once(self.emit))
        except (HostError, FleetError) as error:
            for name, failure in error.failures.items():
                self.emit(Event("failed", failure.message, name))
            self._lose(error.failures)
            return False
        return True

    def is_covered(self, consent: Consent) -> bool:
        """Whether, with the lease in hand, no more is stopped than was confirmed, and no other host has failed.

        Hosts that left the inventory and do not prove now that they were members are left alone.
        """
        here = self.inventory.hosts
        inside, outside = (
            {name: seen for name, seen in self.facts.items() if (name in here) is there} for there in (True, False)
        )
        self._leave_alone(unproven(self.inventory, self.fleet, inside, outside, self._mine.id, locked=True))
        hosts = list(self.facts)
        stops = self.stops()
        return stops is not None and list(self.facts) == hosts and consent.covers(stops)

    def remove(self) -> None:
        """Remove the containers and volumes. Workers first: a head that goes first makes every worker log its loss."""
        self.emit(Event("phase", "removing"))
        head = {self.inventory.head_name} & set(self.facts)
        lost: dict[str, VclusterError] = {}
        for hosts in (set(self.facts) - head, head):
            done, failed = self.fleet.each(self._remove_all, hosts)
            self._removed, lost = {**self._removed, **done}, {**lost, **failed}
        self._lose(lost)

    def _containers(self, connection: HostConnection) -> list[Container]:
        """The cluster's containers on a host now: its node, its pull and its leftovers."""
        found = connection.docker.containers(self._label)
        return [container for container in found if self._has(connection.name, container)]

    def _has(self, host: str, container: Container) -> bool:
        if container.id in self._foreign:
            return False
        if container.name in (node_name(self.cluster), container_name(self.cluster)):
            # Outside the inventory, where its token is, it may name an earlier head.
            here = host in self.inventory.hosts
            return self._mine.owns(container.labels) if here else container.labels.get(ID) == self._mine.id
        return is_leftover(self.cluster, self._mine.id, container)

    def _owns_volume(self, host: str, labels: Mapping[str, str]) -> bool:
        if host not in self.inventory.hosts:
            return labels.get(ID) == self._mine.id
        return self._mine.owns_volume(labels, self.facts[host])

    def _volumes(self, connection: HostConnection) -> list[str]:
        """The names of its volumes; last the state, whose labels name the owner of the rest.

        On a host outside the inventory that is proved by what the volumes of secrets hold.
        """
        found = connection.docker.volumes.labelled(self._label).items()
        mine = (labels for labels in found if is_volume_name(self.cluster, labels[0]))
        names = [name for name, labels in mine if self._owns_volume(connection.name, labels)]
        return sorted(names, reverse=connection.name not in self.inventory.hosts)

    def _remove_all(self, connection: HostConnection) -> Counter[str]:
        """Remove what the cluster has on a host; returns how many of each kind were removed."""
        docker, removed = connection.docker, Counter[str]()
        containers, volumes = self._containers(connection), self._volumes(connection)
        number, grace = len(containers) + len(volumes), graces_of(self.cluster, (one.name for one in containers))
        time = OneByOne(connection.name, "down", number, connection.runtime.after, grace=grace)
        for container in containers:
            self.emit(Event("start", f"removing {container.name}", connection.name))
            with time.one() as deadline:
                docker.remove(container.id, grace_of(self.cluster, container.name), deadline)
            removed["container"] += 1
        for volume in volumes:
            with time.one() as deadline:
                docker.volumes.remove(volume, deadline)
            removed["volume"] += 1
        removed["volume"] += docker.volumes.remove_unlabelled(
            node_name(self.cluster), partial(is_volume_name, self.cluster)
        )
        left = [container.name for container in self._containers(connection)] + self._volumes(connection)
        if left:
            raise HostError(connection.name, f"down: not removed: {and_more(left)}", hint="vcluster down")
        self.emit(Event("done", f"removed {_counted(removed)}", connection.name, {"removed": removed.total()}))
        return removed

    def report(self, stops: Stops) -> None:
        """Emit what was removed, and what is gone with it: `stops` is what was confirmed last."""
        if self.total:
            self._report_losses(stops)
            hosts = count(sum(1 for found in self._removed.values() if found.total()), "host")
            what = _counted(sum(self._removed.values(), Counter[str]()))
            history = " Its history is deleted too." if self._loses_head else ""
            where = f" on {', '.join(self.facts)} alone" if self.failures else ""
            text = f"Removed cluster {self.cluster}{where}: {what} on {hosts}.{history}"
        else:
            there = sorted({f"{other.cluster} on {other.host}" for other in find_foreign(self.inventory, self.facts)})
            seen = f"; others there: {', '.join(there)}" if there else ""
            text = f"Nothing to remove: cluster {self.cluster} is not on these hosts{seen}."
        # With failures the end is their error.
        if self.total or not self.failures:
            self.emit(Event("note", text) if self.failures else Event("result", text, data={"removed": self.total}))

    def _report_losses(self, stops: Stops) -> None:
        if self._loses_key:
            self.emit(Event("note", "the API key is removed too; the next vcluster up makes a new one"))
        if stops.deleted:
            self.emit(Event("note", f"deleted too: {stops.deleted}"))

    def unfinished(self) -> VclusterError:
        """Why it could not be removed everywhere, where something may be left, and what removes that."""
        error = combine(self.failures).with_hosts(self.inventory.hosts)
        if inside := [name for name in self.failures if name in self.inventory.hosts]:
            error.lines.append(f"not removed from {', '.join(inside)}: a node and volumes of it may be left there")
            away = [name for name in inside if not isinstance(self.failures[name], TimedOut)]
            once = [f"once {' and '.join(away)} can be reached:"] if away else []
            error.hint = "\n".join(dict.fromkeys([*error.fixes, *once, "vcluster down"]))
        return error


def _counted(removed: Counter[str]) -> str:
    return ", ".join(count(number, kind) for kind, number in sorted(removed.items()) if number) or "nothing"


def _refuse_foreign(inventory: Inventory, facts: Mapping[str, HostFacts]) -> None:
    """Refuse while something of this name is another cluster's; other names are not in the way."""
    named = {other.host for other in find_foreign(inventory, facts) if other.cluster == inventory.cluster}
    own = facts.get(inventory.head_name)
    # With the inventory's head its key goes anyway: a worker that calls itself the head, too, would be in the way.
    other_head = "" if own and is_head(inventory.cluster, own) else "other-head"
    found = foreign_findings(inventory, facts)
    ensure_no_errors([finding for finding in found if finding.host in named or finding.code == other_head])
