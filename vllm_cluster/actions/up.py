"""Bring the cluster up: every host as in the inventory, and Ray reporting exactly its GPUs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vllm_cluster.actions.assess import Assessment, assess, connect_all, reached, survey_without
from vllm_cluster.actions.consent import Confirm, Consent, stopped_by
from vllm_cluster.actions.explain import add_cause, began
from vllm_cluster.checks.finding import Finding
from vllm_cluster.core.identity import cluster_id
from vllm_cluster.core.plan import CreateNode, Operation, Plan, RemoveContainer, RemoveVolume, RestartNode, StartNode
from vllm_cluster.errors import NodesNotJoined, PreflightFailed, VclusterError, combine
from vllm_cluster.events import Emit, Event, Kind, waiting
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.audit import record
from vllm_cluster.run.barrier import await_gpus
from vllm_cluster.run.connection import Fleet
from vllm_cluster.run.execute import PlanExecution
from vllm_cluster.run.lease import Lease, in_order
from vllm_cluster.run.link_test import run_link_test
from vllm_cluster.run.node_files import node_files
from vllm_cluster.run.node_handle import NodeHandle
from vllm_cluster.run.runtime import SYSTEM, Runtime
from vllm_cluster.run.secrets import Reading
from vllm_cluster.text import by_hosts, count

NEW_KEY = "the endpoint gets a new API key; every client needs it: vcluster key"


@dataclass(frozen=True)
class Planned:
    """What `up` would do; where hosts cannot be reached, for the others alone, and None where the head is one of them.

    `lost` is the error of the hosts that cannot be reached.
    """

    plan: Plan | None
    lost: VclusterError | None = None

    def whole(self) -> Plan:
        """The plan for all hosts.

        Raises:
            VclusterError: some cannot be reached.
        """
        if self.lost or self.plan is None:
            raise self.lost or RuntimeError("no plan")
        return self.plan


def plan(inventory: Inventory, emit: Emit, *, forget: Collection[str] = (), runtime: Runtime = SYSTEM) -> Planned:
    """What `up` would do. Changes nothing."""
    with reached(inventory, emit, runtime=runtime) as (fleet, failures):
        if not failures:
            return Planned(assess(inventory, fleet, emit, reading=Reading.WHAT_CAN_BE, forget=forget).plan)
        lost, made = combine(failures).with_hosts(inventory.hosts), None
        try:
            made = survey_without(inventory, fleet, emit, failures)
        except PreflightFailed as found:
            lost.message += f"\n{found.message}"
            lost.hint = "\n".join(filter(None, (lost.hint, found.hint)))
        return Planned(made, lost)


def up(
    inventory: Inventory,
    emit: Emit,
    *,
    confirm: Confirm,
    cache: Path,
    wait: float = 0.0,
    forget: Collection[str] = (),
    runtime: Runtime = SYSTEM,
) -> Plan:
    """Make the hosts match the inventory, and wait until Ray reports exactly its GPUs; returns what was done.

    `forget` names hosts that left the inventory and are gone for good.

    Raises:
        VclusterError: see the tree in errors; completed steps are kept, and another `up` continues there.
    """
    with connect_all(inventory, emit, runtime=runtime) as fleet:
        look = partial(assess, inventory, fleet, emit, forget=forget)
        first = look()
        done = first.plan
        try:
            if not done.empty:
                done = _change(inventory, fleet, first, look, emit=emit, confirm=confirm, cache=cache, wait=wait)
            _verify(fleet, done, emit)
        except VclusterError as error:
            raise _with_measured_cause(error, fleet, inventory, first, emit) from None
        _report(fleet, done, emit)
        return done


def _with_measured_cause(
    error: VclusterError, fleet: Fleet, inventory: Inventory, seen: Assessment, emit: Emit
) -> VclusterError:
    """The error with its cause: where a host has not joined a Ray that runs, what is measured between the hosts."""
    if isinstance(error, NodesNotJoined) and error.cut_off:
        found: list[Finding] = []
        with suppress(VclusterError):
            found = [finding for finding in run_link_test(fleet, inventory, seen.facts, emit)[0] if finding.error]
        if found:
            error.message += "".join(f"\nmeasured between the hosts: {one.host}: {one.text}" for one in found)
            error.hint = "\n".join(dict.fromkeys(one.fix for one in found))
            return error
    return add_cause(error, fleet, inventory, since=began(seen.facts))


def _change(
    inventory: Inventory,
    fleet: Fleet,
    seen: Assessment,
    look: Callable[..., Assessment],
    *,
    emit: Emit,
    confirm: Confirm,
    cache: Path,
    wait: float,
) -> Plan:
    emit(Event("note", _summary(seen.plan)))
    consent = Consent(confirm, inventory.cluster)
    head = fleet.connections[inventory.head_name]
    while True:
        # Never asked with the lease in hand: a person who is away from the terminal would lock everybody out.
        consent.ask(stopped_by(seen.plan, seen.facts, fleet))
        with Lease(in_order(fleet, seen.facts), inventory.cluster, "up") as lease:
            lease.acquire(wait, waiting(emit))
            # Others may have changed things until the lease was ours.
            seen = look(locked=True)
            if consent.covers(stopped_by(seen.plan, seen.facts, fleet)):
                emit(Event("plan", "", data={"plan": seen.plan}))
                _announce(inventory, seen, emit)
                PlanExecution(seen.plan, fleet, lease, emit, seen.secrets, node_files(), cache).run()
                done = [operation.text for operation in seen.plan.operations()]
                record(NodeHandle(head, inventory.cluster), "up", done, emit)
                return seen.plan


def _announce(inventory: Inventory, seen: Assessment, emit: Emit) -> None:
    """Announce a new API key before it is written: a run that follows a killed one finds the key and is silent."""
    if "api-key" in seen.secrets.new:
        # A cluster that is new has no clients yet.
        kind: Kind = "warning" if cluster_id(inventory, seen.facts) else "note"
        emit(Event(kind, NEW_KEY, data={"code": "new-api-key"}))


def _summary(planned: Plan) -> str:
    """The plan in a line for hosts with the same to do, for people who want to see before it happens."""
    by_host: dict[str, list[str]] = {}
    for operation in planned.operations():
        by_host.setdefault(operation.host, []).append(_short(operation))
    hosts = by_hosts((", ".join(dict.fromkeys(todo)), host) for host, todo in by_host.items())
    return "\n".join(["Plan:", *(f"  {names}: {todo}" for todo, names in hosts.items())])


def _short(operation: Operation) -> str:
    if isinstance(operation, RemoveContainer | RestartNode | StartNode):
        return f"{operation.verb} container {operation.name}"
    if isinstance(operation, RemoveVolume):
        return f"{operation.verb} {operation.name}"
    return f"create container {operation.spec.name}" if isinstance(operation, CreateNode) else operation.verb


def _verify(fleet: Fleet, done: Plan, emit: Emit) -> None:
    emit(Event("phase", "verifying"))
    await_gpus(fleet, done, emit)


def _report(fleet: Fleet, done: Plan, emit: Emit) -> None:
    total = sum(done.gpus.values())
    operations = sum(1 for _ in done.operations())
    text = f"{done.cluster} is up: {count(total, 'GPU')} on {count(len(done.gpus), 'host')}"
    text += " (no changes)" if not operations else ""
    trips = {name: connection.round_trips for name, connection in fleet.connections.items()}
    data = {"gpus": total, "hosts": len(done.gpus), "operations": operations, "round_trips": trips}
    emit(Event("result", text, data=data))
