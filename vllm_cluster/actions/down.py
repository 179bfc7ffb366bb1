"""Take the cluster down: remove what is ours from every host that can be reached, and prove it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from vllm_cluster.actions.consent import Confirm, Consent, Stops, served_by
from vllm_cluster.core.errors import HostError, VclusterError, together
from vllm_cluster.core.preflight import engine_problem
from vllm_cluster.core.spec import CLUSTER, volume_names
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.events import Emit, Event, waiting
from vllm_cluster.run.fleet import Fleet, Link
from vllm_cluster.run.lease import Lease
from vllm_cluster.run.observe import observe
from vllm_cluster.run.runtime import SYSTEM, Runtime


def down(inventory: Inventory, emit: Emit, *, confirm: Confirm, wait: float = 0.0, runtime: Runtime = SYSTEM) -> int:
    """Remove the cluster's containers and volumes, by label; returns how many things were removed.

    Raises:
        Aborted, UsageError, PreflightFailed: something is served, and nobody confirmed that it may stop.
        Unreachable, FleetError: on some hosts it could not be done; on the others it was.
    """
    with Fleet(inventory, runtime) as fleet:
        emit(Event("phase", f"connecting to {len(inventory.hosts)} host{'s'[: len(inventory.hosts) > 1]}"))
        connected, failures = fleet.connect()
        ready, more = fleet.each(lambda link: _observe(inventory, link), connected)
        failures = {**failures, **more}
        for name, error in failures.items():
            emit(Event("failed", error.message, name))
        consent = Consent(confirm, inventory.cluster, then=" and remove the cluster")
        removed = None
        while removed is None:
            consent.ask(_stops(inventory, fleet, ready))
            with _lease(inventory, fleet, connected, emit, wait=wait) as still_ours:
                if consent.covers(_stops(inventory, fleet, ready)):
                    removed, more = _remove(inventory, fleet, ready, emit, still_ours)
        failures = {**failures, **more}
        total = sum(removed.values())
    if failures:
        raise together(failures).among(inventory.hosts)
    emit(Event("result", f"{inventory.cluster} is down: {total} things removed, nothing left", data={"removed": total}))
    return total


def _observe(inventory: Inventory, link: Link) -> None:
    problem = engine_problem(observe(inventory, link))
    if problem:
        raise HostError(link.name, problem.text, hint=problem.fix)


def _stops(inventory: Inventory, fleet: Fleet, hosts: Iterable[str]) -> Stops:
    """What is served now: the head knows, and without it nobody does while a worker's node runs."""
    label = f"{CLUSTER}={inventory.cluster}"
    containers = fleet.all(lambda link: link.engine.containers(label), hosts)
    stops = served_by(inventory.cluster, containers, fleet.links)
    runs = any(container.state == "running" for there in containers.values() for container in there)
    if runs and inventory.head_name not in containers:
        return Stops(unknown=f"the head {inventory.head_name} cannot be asked")
    return stops


@contextmanager
def _lease(
    inventory: Inventory, fleet: Fleet, connected: Collection[str], emit: Emit, *, wait: float
) -> Iterator[Callable[[], None]]:
    """The lease's own check; without a head there is no lease to lose."""
    if inventory.head_name not in connected:
        if connected:
            emit(Event("warning", "the head cannot be reached: going on without the lease", inventory.head_name))
        yield lambda: None
        return
    with Lease(fleet.links[inventory.head_name], inventory.cluster, "down") as lease:
        lease.acquire(wait, waiting(emit))
        yield lease.check


def _remove(
    inventory: Inventory, fleet: Fleet, hosts: Iterable[str], emit: Emit, still_ours: Callable[[], None]
) -> tuple[dict[str, int], dict[str, VclusterError]]:
    emit(Event("phase", "removing"))
    # Workers first: a head that goes first makes every worker log its loss.
    workers = [name for name in hosts if name != inventory.head_name]
    removed, failed = fleet.each(lambda link: _clear(inventory, link, emit, still_ours), workers)
    head, last = fleet.each(lambda link: _clear(inventory, link, emit, still_ours), set(hosts) - set(workers))
    return {**removed, **head}, {**failed, **last}


def _clear(inventory: Inventory, link: Link, emit: Emit, still_ours: Callable[[], None]) -> int:
    label = f"{CLUSTER}={inventory.cluster}"
    engine, removed = link.engine, 0
    for container in engine.containers(label):
        still_ours()
        emit(Event("start", f"removing {container.name}", link.name))
        engine.remove(container.id)
        removed += 1
    for volume in engine.volumes.labelled(label):
        still_ours()
        engine.volumes.remove(volume)
        removed += 1
    still_ours()
    removed += engine.volumes.remove_blank(volume_names(inventory.cluster))
    left = [c.name for c in engine.containers(label)] + list(engine.volumes.labelled(label))
    if left:
        raise HostError(link.name, f"still there: {', '.join(left)}", hint="run vcluster down again")
    emit(Event("done", f"{removed} removed, nothing of {inventory.cluster} is left", link.name, {"removed": removed}))
    return removed
