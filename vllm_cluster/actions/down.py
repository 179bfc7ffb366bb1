"""Take the cluster down: remove what is ours from every host that can be reached, and prove it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from vllm_cluster.core.errors import HostError, together
from vllm_cluster.core.preflight import engine_problem
from vllm_cluster.core.spec import CLUSTER, volume_names
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.events import Emit, Event
from vllm_cluster.run.fleet import Fleet, Link
from vllm_cluster.run.lease import Lease
from vllm_cluster.run.observe import observe


def down(inventory: Inventory, emit: Emit, *, wait: float = 0.0) -> int:
    """Remove the cluster's containers and volumes, by label; returns how many things were removed.

    Raises:
        Unreachable, FleetError: on some hosts it could not be done; on the others it was.
    """
    with Fleet(inventory) as fleet, ExitStack() as stack:
        emit(Event("phase", f"connecting to {len(inventory.hosts)} hosts"))
        connected, failures = fleet.connect()
        for name, error in failures.items():
            emit(Event("failed", error.message, name))
        still_ours: Callable[[], None] = lambda: None  # noqa: E731 - without a head there is no lease to lose
        if inventory.head_name in connected:
            lease = stack.enter_context(Lease(fleet.links[inventory.head_name].transport, inventory.cluster, "down"))
            lease.acquire(wait, lambda holder: emit(Event("progress", f"waiting for {holder}")))
            still_ours = lease.check
        elif connected:
            emit(Event("warning", "the head cannot be reached: going on without the lease", inventory.head_name))
        emit(Event("phase", "removing"))
        # Workers first: a head that goes first makes every worker log its loss.
        workers = [name for name in connected if name != inventory.head_name]
        removed, more = fleet.each(lambda link: _clear(inventory, link, emit, still_ours), workers)
        head, last = fleet.each(lambda link: _clear(inventory, link, emit, still_ours), set(connected) - set(workers))
        failures = {**failures, **more, **last}
        total = sum(removed.values()) + sum(head.values())
    if failures:
        raise together(failures).among(inventory.hosts)
    emit(Event("result", f"{inventory.cluster} is down: {total} things removed, nothing left", data={"removed": total}))
    return total


def _clear(inventory: Inventory, link: Link, emit: Emit, still_ours: Callable[[], None]) -> int:
    facts = observe(inventory, link)
    problem = engine_problem(facts)
    if problem:
        raise HostError(link.name, problem.text, hint=problem.fix)
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
