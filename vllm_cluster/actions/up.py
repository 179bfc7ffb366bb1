"""Bring the cluster up: every host as in the inventory, and Ray reporting exactly its GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from vllm_cluster.actions import phases
from vllm_cluster.actions.assess import Assessment, assess, connect_all, facts_of, judge, reached, survey_without
from vllm_cluster.actions.assess import compare as compare_facts
from vllm_cluster.actions.consent import Confirm, Consent, Stops, stopped_by
from vllm_cluster.actions.explain import add_cause, began
from vllm_cluster.actions.phases import compare_again, confirm, lock, unlock
from vllm_cluster.checks.finding import Finding
from vllm_cluster.core.identity import cluster_id
from vllm_cluster.core.members import NONE_NAMED, Named, ways_of
from vllm_cluster.core.plan import (
    CreateNode,
    GpusJoined,
    Operation,
    Plan,
    RemoveContainer,
    RemoveVolume,
    RestartNode,
    StartNode,
)
from vllm_cluster.errors import NodesNotJoined, PreflightFailed, VclusterError, combine
from vllm_cluster.events import Emit, Event, Kind, warn_once
from vllm_cluster.facts.host_facts import HostFacts
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run import serve_request
from vllm_cluster.run.audit import record
from vllm_cluster.run.barrier import hold
from vllm_cluster.run.connection import Fleet, HostConnection
from vllm_cluster.run.execute import PlanExecution
from vllm_cluster.run.host_images import with_contents
from vllm_cluster.run.image_supply import renew as renew_image
from vllm_cluster.run.lease import in_order
from vllm_cluster.run.link_test import run_link_test
from vllm_cluster.run.node_files import node_files
from vllm_cluster.run.node_handle import NodeHandle
from vllm_cluster.run.observe import observe as look_at
from vllm_cluster.run.runtime import SYSTEM, Runtime
from vllm_cluster.run.secrets import Reading
from vllm_cluster.text import by_hosts, count

NEW_KEY = "the endpoint gets a new API key; every client needs it: vcluster endpoint --key"


@dataclass(frozen=True)
class Planned:
    """What `up` would do; where hosts cannot be reached, for the others alone, and None where the head is one of them.

    `lost` is the error of the hosts that cannot be reached; `stops` is what it stops that runs now.
    """

    plan: Plan | None
    stops: Stops
    lost: VclusterError | None = None

    def whole(self) -> Plan:
        """The plan for all hosts.

        Raises:
            VclusterError: some cannot be reached.
        """
        if self.lost or self.plan is None:
            raise self.lost or RuntimeError("no plan")
        return self.plan


def plan(inventory: Inventory, emit: Emit, *, named: Named = NONE_NAMED, runtime: Runtime = SYSTEM) -> Planned:
    """What `up` would do. Changes nothing."""
    with reached(inventory, emit, runtime=runtime) as (fleet, failures):
        if not failures:
            return _planned(assess(inventory, fleet, emit, reading=Reading.WHAT_CAN_BE, named=named), fleet)
        lost, seen = combine(failures).with_hosts(inventory.hosts), None
        try:
            seen = survey_without(inventory, fleet, emit, failures)
        except PreflightFailed as found:
            lost.message += f"\n{found.message}"
            lost.hint = "\n".join(filter(None, (lost.hint, found.hint)))
        return _planned(seen, fleet, lost)


def _planned(seen: Assessment | None, fleet: Fleet, lost: VclusterError | None = None) -> Planned:
    return Planned(seen.plan, stopped_by(seen.plan, seen.facts, fleet), lost) if seen else Planned(None, Stops(), lost)


def up(
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
    consent = Consent(confirm, inventory.cluster)
    state = UpState(
        inventory=inventory,
        emit=warn_once(emit),
        runtime=runtime,
        verb="up",
        consent=consent,
        wait=wait,
        cache=cache,
        named=named,
        renew_image=renew_image,
    )
    return phases.run(UP, state, _with_measured_cause, _report).seen.plan


@dataclass(frozen=True, kw_only=True)
class UpState(phases.ChangingState):
    """What the phases of `up` know."""

    cache: Path
    named: Named
    renew_image: bool = False
    # Gives a tag back, however the verb ends before its first change: the next `up` must not take the renewed image.
    undo: ExitStack = field(default_factory=ExitStack)
    facts: Mapping[str, HostFacts] = phases.LATER
    seen: Assessment = phases.LATER
    # What was found first: the reason for a failure may be older than what it did.
    first: Assessment | None = None

    def stops(self) -> Stops:
        """The running nodes that the plan removes or restarts, and the model on them."""
        return stopped_by(self.seen.plan, self.seen.facts, self.fleet)

    def hosts(self) -> Sequence[HostConnection]:
        """Every host of the plan."""
        return in_order(self.fleet, self.seen.facts)

    def again(self) -> UpState:
        """Observed, checked and compared under the lease."""
        seen = assess(self.inventory, self.fleet, self.emit, locked=True, named=self.named)
        return replace(self, seen=seen)


def connect(state: UpState) -> UpState:
    """Connect to every host, and remember that an inventory on this machine names it."""
    inventory, runtime = state.inventory, state.runtime
    fleet = state.opened.enter_context(connect_all(inventory, state.emit, runtime=runtime))
    runtime.visited.add(inventory.cluster, ways_of(inventory))
    return replace(state, fleet=fleet)


def observe(state: UpState) -> UpState:
    """Look at every host."""
    state.emit(Event("phase", f"inspecting {count(len(state.inventory.hosts), 'host')}"))
    return replace(state, facts=facts_of(state.inventory, state.fleet))


def renew(state: UpState) -> UpState:
    """Pull what the tag means now to the head, where nothing is stopped for it; the plan has what follows."""
    if not state.renew_image:
        return state
    inventory, head = state.inventory, state.fleet.connections[state.inventory.head_name]
    renew_image(head, inventory.image, state.emit, state.opened.enter_context(state.undo))
    facts = {**state.facts, head.name: look_at(inventory, head)}
    return replace(state, facts=with_contents(inventory, state.fleet, facts))


def check(state: UpState) -> UpState:
    """Refuse what is known not to work, before anything is touched."""
    judge(state.inventory, state.facts, state.emit)
    return state


def compare(state: UpState) -> UpState:
    """Make the plan."""
    seen = compare_facts(state.inventory, state.fleet, state.facts, state.emit, named=state.named)
    if not seen.plan.empty:
        state.emit(Event("note", _summary(seen.plan, stopped_by(seen.plan, seen.facts, state.fleet))))
    return replace(state, seen=seen, first=seen, idle=seen.plan.empty)


def apply(state: UpState) -> UpState:
    """Run the plan, and write the history."""
    state.undo.pop_all()
    if state.idle:
        return state
    plan, head = state.seen.plan, state.fleet.connections[state.inventory.head_name]
    state.emit(Event("plan", "", data={"plan": plan}))
    _announce(state.inventory, state.seen, state.emit)
    started = state.runtime.clock.monotonic()
    PlanExecution(plan, state.fleet, state.lease, state.emit, state.seen.secrets, node_files(), state.cache).run()
    took = state.runtime.clock.monotonic() - started
    record(NodeHandle(head, state.inventory.cluster), "up", _by_hosts(plan), state.emit, seconds=took)
    return state


def verify(state: UpState) -> UpState:
    """Wait until Ray reports exactly the GPUs of the plan, where no stage has waited for that."""
    plan, joined = state.seen.plan, GpusJoined(state.seen.plan.gpus)
    if any(joined in stage.barriers for stage in plan.stages):
        return state
    state.emit(Event("phase", "verifying"))
    hold(joined, plan, state.fleet, state.emit)
    return state


UP = (connect, observe, renew, check, compare, confirm, lock, compare_again, apply, unlock, verify)


def _with_measured_cause(state: UpState, error: VclusterError) -> VclusterError:
    """The error with its cause: where a host has not joined a Ray that runs, what is measured between the hosts."""
    if state.first is None:
        return error
    fleet, inventory, seen, emit = state.fleet, state.inventory, state.first, state.emit
    if isinstance(error, NodesNotJoined) and error.cut_off:
        found: list[Finding] = []
        with suppress(VclusterError):
            found = [finding for finding in run_link_test(fleet, inventory, seen.facts, emit)[0] if finding.error]
        if found:
            error.message += "".join(f"\nmeasured between the hosts: {one.host}: {one.message}" for one in found)
            error.hint = "\n".join(dict.fromkeys(one.fix for one in found))
            return error
    return add_cause(error, fleet, inventory, since=began(seen.facts))


def _announce(inventory: Inventory, seen: Assessment, emit: Emit) -> None:
    """Announce a new API key before it is written: a run that follows a killed one finds the key and is silent."""
    if "api-key" in seen.secrets.new:
        # A cluster that is new has no clients yet.
        kind: Kind = "warning" if cluster_id(inventory, seen.facts) else "note"
        emit(Event(kind, NEW_KEY, data={"code": "new-api-key"}))


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


def _report(state: UpState) -> None:
    """The result, and what a person does next."""
    fleet, done, emit = state.fleet, state.seen.plan, state.emit
    total = sum(done.gpus.values())
    operations = sum(1 for _ in done.operations())
    text = f"{done.cluster} is up: {count(total, 'GPU')} on {count(len(done.gpus), 'host')}"
    text += " (no changes)" if not operations else ""
    trips = {name: connection.round_trips for name, connection in fleet.connections.items()}
    data = {"gpus": total, "hosts": len(done.gpus), "operations": operations, "round_trips": trips}
    emit(Event("result", text, data=data))
    if not state.idle:
        head = fleet.connections[state.inventory.head_name]
        emit(Event("note", _next(NodeHandle(head, state.inventory.cluster))))


def _next(head: NodeHandle) -> str:
    """What a person does next: a model that was asked for before is started by the head itself."""
    serving = head.state().serving
    if serving:
        state = {"ready": "is served", "failed": "has failed"}.get(serving.phase, "is starting")
        return f"{serving.name} {state}: vcluster status"
    name = (serve_request.asked(head) or {}).get("name")
    return f"{name} is starting: vcluster status" if name else "next: vcluster serve MODEL"
