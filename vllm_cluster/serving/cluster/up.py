"""Bring the cluster up: every host as in the inventory, and Ray reporting exactly its GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from vllm_cluster.kernel.apply.barrier import await_gpus
from vllm_cluster.kernel.apply.execute import PlanExecution
from vllm_cluster.kernel.assess import Assessment, assess, compare_hosts, facts_of, judge
from vllm_cluster.kernel.checks.finding import Finding
from vllm_cluster.kernel.errors import NodesNotJoined, TagMoved, VclusterError
from vllm_cluster.kernel.events import Emit, Event, Kind, show_waiting_once, warn_once
from vllm_cluster.kernel.facts.heads import Led
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import Fleet
from vllm_cluster.kernel.hosts.lent import show_end
from vllm_cluster.kernel.hosts.observe import observe
from vllm_cluster.kernel.hosts.reach import connect_all
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.images.host_images import with_contents
from vllm_cluster.kernel.images.supply import renew
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.lease.lease import Lease, in_order
from vllm_cluster.kernel.links.measure import run_link_test
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.node.history import record
from vllm_cluster.kernel.plan.claims import find_claims
from vllm_cluster.kernel.plan.identity import authority
from vllm_cluster.kernel.plan.members import NONE_NAMED, Named, way_to, ways_of
from vllm_cluster.kernel.plan.plan import (
    CreateNode,
    GpusJoined,
    Operation,
    Plan,
    RemoveContainer,
    RemoveVolume,
    RestartNode,
    StartNode,
)
from vllm_cluster.kernel.text import by_hosts, count
from vllm_cluster.serving.cluster.moved_cache import absent_models
from vllm_cluster.serving.consent import Confirm, Consent, stopped_by
from vllm_cluster.serving.stops import Stops
from vllm_cluster.wire.order import Order
from vllm_cluster.wire.reading import RefusedDocument

ALONE = "one host needs no Ray: vLLM's own processes join its GPUs (backend: ray in the inventory has Ray, too)"
FIRST_KEY = "made an API key for the endpoint: vcluster endpoint --key prints it"
NEW_KEY = "the endpoint gets a new API key; every client needs it: vcluster endpoint --key"


class Planned(NamedTuple):
    """What `up` would do, and what that stops that runs now."""

    plan: Plan
    stops: Stops


def plan_cluster(inventory: Inventory, emit: Emit, *, runtime: Runtime = SYSTEM) -> Planned:
    """What `up` would do. Changes nothing.

    Raises:
        VclusterError: as `up`.
    """
    with connect_all(inventory, emit, runtime=runtime) as fleet:
        seen = assess(inventory, fleet, emit)
        _note_backend(inventory, seen.plan, emit)
        return Planned(seen.plan, _stops(inventory, seen, fleet))


def bring_up(
    inventory: Inventory,
    emit: Emit,
    *,
    confirm: Confirm,
    cache: Path,
    wait: float = 0.0,
    named: Named = NONE_NAMED,
    renew_image: bool = False,
    runtime: Runtime = SYSTEM,
) -> Plan:
    """Make the hosts match the inventory, and wait until Ray reports exactly its GPUs; returns what was done.

    `named` are hosts that left the inventory; `renew_image` takes what the image's tag means
    in its registry now.

    Raises:
        VclusterError: see the tree in errors; completed steps are kept, and another `up` continues there.
    """
    emit, consent = warn_once(emit), Consent(confirm, inventory.cluster)
    show_end(inventory, emit, runtime)
    # A renewed tag is given back, however the verb ends before its first change: the next `up` must not take it.
    with connect_all(inventory, emit, runtime=runtime) as fleet, ExitStack() as undo:
        runtime.visited.add(inventory.cluster, ways_of(inventory))
        facts = _facts(inventory, fleet, emit, undo if renew_image else None)
        seen = compare_hosts(inventory, fleet, facts, emit, named=named)
        # The first look: the reason for a failure may be older than what was done.
        planned, since = seen.plan, began(facts)
        del facts
        try:
            if not planned.empty:
                _note_plan(inventory, planned, _stops(inventory, seen, fleet), emit)
            while not seen.plan.empty:
                consent.ask(_stops(inventory, seen, fleet))
                with Lease(in_order(fleet, seen.facts), inventory.cluster, "up") as lease:
                    lease.acquire(wait, show_waiting_once(emit))
                    # Others may have changed the cluster since the question. Both looks have no room together.
                    seen = replace(seen, facts={})
                    seen = assess(inventory, fleet, emit, locked=True, named=named)
                    if consent.covers(_stops(inventory, seen, fleet)):
                        undo.pop_all()
                        if _apply(inventory, seen, PlanExecution(seen.plan, fleet, lease, emit, seen.secrets, cache)):
                            break
            undo.pop_all()
            _verify(seen.plan, fleet, emit)
            _remember_head(inventory, fleet, seen, done=True)
        except VclusterError as error:
            raise _with_measured_cause(inventory, fleet, seen, error, emit, since=since) from None
        _report(inventory, fleet, seen.plan, emit, changed=not planned.empty)
    return seen.plan


def _facts(inventory: Inventory, fleet: Fleet, emit: Emit, undo: ExitStack | None) -> Mapping[str, HostFacts]:
    """Look at every host, and refuse what is known not to work; with `undo`, with the image that its tag means now."""
    emit(Event("phase", f"inspecting {count(len(inventory.hosts), 'host')}"))
    facts = facts_of(inventory, fleet)
    if undo:
        head = fleet.connections[inventory.head_name]
        renew(head, inventory.image, emit, undo)
        facts = with_contents(inventory, fleet, {**facts, head.name: observe(inventory, head)})
    judge(inventory, facts, emit)
    return facts


def _note_backend(inventory: Inventory, planned: Plan, emit: Emit) -> None:
    """Why the only host gets no Ray: without it, a plan that takes Ray away is 30 settings and no reason."""
    if not planned.empty and inventory.backend == "mp" and len(inventory.hosts) == 1:
        emit(Event("note", ALONE))


def _note_plan(inventory: Inventory, planned: Plan, stops: Stops, emit: Emit) -> None:
    _note_backend(inventory, planned, emit)
    emit(Event("note", _summary(planned, stops)))


def _stops(inventory: Inventory, seen: Assessment, fleet: Fleet) -> Stops:
    """The running nodes that the plan removes or restarts, and the model on them."""
    stops = stopped_by(seen.plan, seen.facts, fleet, authority(inventory, seen.facts).heads)
    others = find_claims(inventory, seen.facts) if inventory.keep is not None else ()
    given_up = tuple(one.host for one in others if one.host != inventory.keep)
    stops = replace(stops, given_up=given_up)
    stops = replace(stops, new_key=stops.anything and _makes_new_key(inventory, seen))
    return replace(stops, absent=absent_models(inventory, seen.facts, fleet)) if stops.again else stops


def _makes_new_key(inventory: Inventory, seen: Assessment) -> bool:
    """Whether a cluster that is known has no API key on the hosts that may have it."""
    return "api-key" in seen.secrets.new and authority(inventory, seen.facts).id is not None


def _apply(inventory: Inventory, seen: Assessment, execution: PlanExecution) -> bool:
    """Run the plan, and write the history; False where what the head got makes another plan, and another question."""
    fleet, emit = execution.fleet, execution.emit
    emit(Event("plan", "", data={"plan": seen.plan}))
    if "api-key" in seen.secrets.new:
        # Before it is written: a run that follows a killed one finds the key, and is silent. No warning where the
        # cluster is new, and has no clients yet.
        known = _makes_new_key(inventory, seen)
        kind: Kind = "warning" if known else "note"
        emit(Event(kind, NEW_KEY if known else FIRST_KEY, data={"code": "new-api-key"}))
    started = fleet.runtime.clock.monotonic()
    _remember_head(inventory, fleet, seen)
    try:
        execution.run()
    except TagMoved as moved:
        emit(Event("note", moved.message))
        return False
    took = fleet.runtime.clock.monotonic() - started
    head = NodeHandle(fleet.connections[inventory.head_name], inventory.cluster)
    record(head, "up", _by_hosts(seen.plan), emit, seconds=took)
    return True


def _remember_head(inventory: Inventory, fleet: Fleet, seen: Assessment, *, done: bool = False) -> None:
    """Keep on this machine where the cluster's head is; once all is `done`, that it is there alone.

    It is `made` here where its cluster is new, where the head moved from one that was, or where a person gives the id
    or names the head. A host to which it moves is one that leads only once all is done: until then it may have nothing.
    """
    visited, way = fleet.runtime.visited, way_to(inventory, inventory.hosts[inventory.head_name])
    before, identity = visited.heads(inventory.cluster).get(way), seen.plan.id
    mine, named = authority(inventory, seen.facts), inventory.id or inventory.keep is not None
    sources = [name for name in mine.heads if name != inventory.head_name]
    same = before if before and before.id == identity else None
    moved = any(seen.facts[name].made_here for name in sources)
    made = bool(mine.id is None or named or moved or (same and same.made))
    # Where nothing of a head is there yet, another run may find what another one left.
    there = not sources and inventory.head_name in (one.host for one in find_claims(inventory, seen.facts))
    now = Led(seen.plan.head_address, identity, made=made, done=done or there)
    if inventory.keep in sources:
        source = inventory.hosts[inventory.keep]
        visited.lead(inventory.cluster, way_to(inventory, source), Led(source.address, identity, made=True))
    # The host that a person names as the head is that, also where this run breaks off.
    ended = ways_of(inventory) if done or (there and inventory.keep == inventory.head_name) else ()
    if same and same.leads and not done:
        # Until all is done the nodes may name the address that it had before.
        now = replace(now, address=same.address, done=same.done or there)
    visited.lead(inventory.cluster, way, now, ended)


def _verify(plan: Plan, fleet: Fleet, emit: Emit) -> None:
    """Wait until Ray reports exactly the GPUs of the plan, where no stage has waited for that."""
    joined = GpusJoined(plan.gpus)
    if not any(joined in stage.barriers for stage in plan.stages):
        emit(Event("phase", "verifying"))
        await_gpus(fleet, plan, emit)


def began(facts: Mapping[str, HostFacts]) -> dict[str, float]:
    """When these facts were asked for, in seconds since 1970 by each host's clock: what was written before is older.

    Whole seconds, as logs have them.
    """
    return {name: float(int(entry.clock)) for name, entry in facts.items()}


def _with_measured_cause(
    inventory: Inventory,
    fleet: Fleet,
    seen: Assessment,
    error: VclusterError,
    emit: Emit,
    *,
    since: Mapping[str, float],
) -> VclusterError:
    """The error with its cause: where a host has not joined a Ray that runs, what is measured between the hosts."""
    if isinstance(error, NodesNotJoined) and error.cut_off:
        found: list[Finding] = []
        with suppress(VclusterError):
            found = [finding for finding in run_link_test(fleet, inventory, seen.facts, emit)[0] if finding.error]
        if found:
            error.lines += [f"measured between the hosts: {one.host}: {one.message}" for one in found]
            error.hint = "\n".join(dict.fromkeys(one.fix for one in found))
            return error
    # All known failures are read with it.
    from vllm_cluster.serving.explain.explain import add_cause  # noqa: PLC0415

    return add_cause(error, fleet, inventory, since=since)


def _summary(planned: Plan, stops: Stops) -> str:
    """The plan for people who want to see before it happens."""
    model = [f"! {stops.consequence}"] if stops.consequence else []
    return "\n".join(["Plan:", *(f"  {line}" for line in (*_by_hosts(planned), *model))])


def _by_hosts(planned: Plan) -> list[str]:
    """What a plan does, in a line for hosts with the same to do."""
    by_host: dict[str, list[str]] = {}
    for operation in planned.operations():
        by_host.setdefault(operation.host, []).append(_short(operation))
    hosts = by_hosts((", ".join(dict.fromkeys(todo)), host) for host, todo in by_host.items())
    return [f"{names}: {todo}" for todo, names in hosts.items()]


def _short(operation: Operation) -> str:
    if isinstance(operation, RemoveContainer | RestartNode | StartNode):
        return f"{operation.verb} container {operation.name}"
    if isinstance(operation, RemoveVolume):
        return f"{operation.verb} {operation.name}"
    return f"create container {operation.spec.name}" if isinstance(operation, CreateNode) else operation.verb


def _report(inventory: Inventory, fleet: Fleet, done: Plan, emit: Emit, *, changed: bool) -> None:
    """Emit the result, and what a person does next."""
    operations = sum(1 for _ in done.operations())
    text = f"{done.cluster} is up: {count(sum(done.gpus.values()), 'GPU')} on {count(len(done.gpus), 'host')}"
    text += " (no changes)" if not operations else ""
    trips = {name: connection.round_trips for name, connection in fleet.connections.items()}
    data = {"gpus": sum(done.gpus.values()), "hosts": len(done.gpus), "operations": operations, "round_trips": trips}
    emit(Event("result", text, data=data))
    if changed:
        emit(Event("note", _next(NodeHandle(fleet.connections[inventory.head_name], inventory.cluster))))


def _next(head: NodeHandle) -> str:
    """What a person does next: models that were asked for before are started by the head itself."""
    rows, order = head.state().replicas, Order()
    with suppress(RefusedDocument):
        order = head.order() or order
    by_state: dict[str, list[str]] = {}
    for name in dict.fromkeys((*(one.name for one in rows), *order.names)):
        phases = {one.phase for one in rows if one.name == name}
        state = "served" if "ready" in phases else "failed" if phases == {"failed"} else "starting"
        by_state.setdefault(state, []).append(name)
    texts = [_in_state(names, state) for state, names in by_state.items()]
    return f"{', '.join(texts)}: vcluster status" if texts else "now run vcluster serve MODEL"


def _in_state(names: list[str], state: str) -> str:
    """`a and b are starting`; of more their number."""
    what = " and ".join(names) if len(names) < 3 else count(len(names), "model")
    if state == "failed":
        return f"{what} {'has' if len(names) == 1 else 'have'} failed"
    return f"{what} {'is' if len(names) == 1 else 'are'} {state}"
