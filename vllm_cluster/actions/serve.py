"""Serve a model, or stop serving it: write the request on the head, and follow its progress."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllm_cluster.actions import phases
from vllm_cluster.actions.assess import Assessment, assess, connect_all
from vllm_cluster.actions.consent import Confirm, Consent, Stops, served_on
from vllm_cluster.actions.follow import Follower, continues_on_interrupt, serving_on
from vllm_cluster.actions.phases import compare_again, confirm, lock, unlock
from vllm_cluster.actions.serve_check import check_request
from vllm_cluster.backends import vllm
from vllm_cluster.core import request
from vllm_cluster.core.node_status import ServeStatus
from vllm_cluster.core.plan import (
    CreateNode,
    Operation,
    Plan,
    RecordMembers,
    RemoveContainer,
    RestartNode,
    StartNode,
)
from vllm_cluster.core.spec import node_name
from vllm_cluster.errors import PreflightFailed, UsageError
from vllm_cluster.events import Emit, Event
from vllm_cluster.facts.host_facts import HostFacts
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run import serve_request
from vllm_cluster.run.audit import record
from vllm_cluster.run.connection import Fleet, HostConnection
from vllm_cluster.run.history import ready_requests
from vllm_cluster.run.node_handle import NodeHandle
from vllm_cluster.run.runtime import SYSTEM, Runtime
from vllm_cluster.run.secrets import Reading
from vllm_cluster.text import by_hosts


@dataclass(frozen=True)
class Endpoint:
    """Where the model answers; on the head's loopback unless exposed."""

    model: str
    host: str
    head: str
    port: int

    @property
    def exposed(self) -> bool:
        """Whether other machines can reach it without a tunnel."""
        return self.host != "127.0.0.1"


def serve(
    inventory: Inventory,
    emit: Emit,
    *,
    model: str,
    name: str | None,
    tp: int | None,
    pp: int | None,
    expose: bool,
    extra: Sequence[str],
    confirm: Confirm,
    hosts: Sequence[str] = (),
    rollback: bool = True,
    log: bool = False,
    wait: float = 0.0,
    runtime: Runtime = SYSTEM,
) -> Endpoint:
    """Serve a model, and return once it has generated a token; with `rollback`, else what was ready before is served.

    Raises:
        Aborted, UsageError: another model is served, and its stop was not confirmed.
        PreflightFailed: the cluster is not up, or what is asked for cannot work; what is served continues.
        HostError: vLLM ended, or waits in vain; with the reason.
    """
    served, by_default = name or model, tp is None and pp is None
    _ensure_allowed(inventory, model, served, extra)
    named = _named(inventory, hosts)
    with connect_all(inventory, emit, runtime=runtime) as fleet:
        seen = assess(inventory, fleet, emit, reading=Reading.NONE)
        require_up(seen.plan)
        layout, where = _layout(inventory, seen.plan.gpus, named, tp, pp)
        head = fleet.connections[inventory.head_name]
        given = {"model": model, "by_default": by_default, "rollback": rollback, **where}
        wanted = _request(inventory, layout, given, served=served, expose=expose, extra=extra)
        endpoint = Endpoint(served, wanted["host"], head.name, wanted["port"])
        serving = serving_on(head, inventory)
        number = _asked_already(head, inventory, serving, wanted["generation"])
        if number is not None and serving and serving.request == number and serving.phase == "ready":
            _report_unchanged(head, inventory, served, emit, extra)
            return endpoint
        text = f"{served} is already being started; following it"
        if number is None:
            _ensure_possible(fleet, inventory, seen, wanted, emit, serving=serving, layout=layout, extra=extra)
            consent = Consent(confirm, inventory.cluster, then=f" and serve {served}")
            number = ask_head(inventory, head, wanted, consent, wait=wait, emit=emit, what="serve")
            text = f"serving {served}: TP={layout.tp} × PP={layout.pp}"
        emit(Event("phase", text))
        with continues_on_interrupt(inventory.cluster, served):
            Follower(fleet, inventory, number, emit, asked=wanted, log=log).follow()
        return endpoint


def _ensure_allowed(inventory: Inventory, model: str, served: str, extra: Sequence[str]) -> None:
    asks = next((flag for flag in extra if flag.partition("=")[0] in ("-h", "--help")), None)
    if asks:
        shown = f"on {inventory.head_name}: docker exec {node_name(inventory.cluster)} vllm serve {asks}"
        raise UsageError(f"{asks} prints vLLM's help and serves nothing", hint=shown)
    vllm.ensure_allowed(model, served, extra)


def _named(inventory: Inventory, hosts: Sequence[str]) -> tuple[str, ...]:
    """The hosts that were named, in the inventory's order; none where all were.

    Raises:
        UsageError: there is no such host.
    """
    for name in hosts:
        if name not in inventory.hosts:
            near = difflib.get_close_matches(name, inventory.hosts, n=1, cutoff=0.5)
            also = f", did you mean {near[0]}?" if near else ""
            hint = f"hosts of the inventory: {', '.join(inventory.hosts)}"
            raise UsageError(f'--hosts: the inventory has no host "{name}"{also}', hint=hint)
    named = tuple(name for name in inventory.hosts if name in hosts)
    return () if len(named) == len(inventory.hosts) else named


def _layout(
    inventory: Inventory, gpus: Mapping[str, int], named: Sequence[str], tp: int | None, pp: int | None
) -> tuple[vllm.Parallelism, dict[str, Any]]:
    """How the model is laid over the GPUs (address → number, the head first), and what the request has of them."""
    names = {host.address: name for name, host in inventory.hosts.items()}
    there = {address: number for address, number in gpus.items() if not named or names[address] in named}
    idle = [f"{gpus[address]} of {names[address]}" for address in gpus if address not in there]
    where = ", ".join(names[address] for address in there) if named else "the cluster"
    numbers, labels = list(there.values()), [names[address] for address in there]
    layout = vllm.choose_parallelism(numbers, tp, pp, labels, where=where)
    reasons = [*layout.reasons, *([f"--hosts {','.join(named)}: GPUs stay idle: {', '.join(idle)}"] if named else [])]
    where_it_goes: dict[str, Any] = {"nodes": gpus, "ranks": vllm.place(there, layout.tp, layout.pp)}
    where_it_goes |= {"hosts": list(there)} if named else {}
    return replace(layout, reasons=tuple(reasons)), where_it_goes


def _request(
    inventory: Inventory,
    layout: vllm.Parallelism,
    given: Mapping[str, Any],
    *,
    served: str,
    expose: bool,
    extra: Sequence[str],
) -> dict[str, Any]:
    host = inventory.hosts[inventory.head_name].address if expose else "127.0.0.1"
    at: dict[str, Any] = {"name": served, "host": host, "port": inventory.ports.api}
    argv = vllm.serve_argv(given["model"], tp=layout.tp, pp=layout.pp, extra=extra, **at)
    return request.request(argv, **at, **given)


def _report_unchanged(
    head: HostConnection, inventory: Inventory, served: str, emit: Emit, extra: Sequence[str]
) -> None:
    now = served_on(NodeHandle(head, inventory.cluster)).served
    emit(Event("result", f"already served: {now.text if now else served}. Nothing was changed."))
    if "config" in vllm.options(extra):
        text = "vLLM reads the file of --config at its start only: if it has changed, run vcluster stop and serve again"
        emit(Event("note", text))


def _ensure_possible(
    fleet: Fleet,
    inventory: Inventory,
    seen: Assessment,
    wanted: Mapping[str, Any],
    emit: Emit,
    *,
    serving: ServeStatus | None,
    layout: vllm.Parallelism,
    extra: Sequence[str],
) -> None:
    """Show how the model is laid out and why, and refuse what is known not to work."""
    for reason in layout.reasons:
        emit(Event("note", reason))
    if serving is None:
        _require_port(seen.facts[inventory.head_name], inventory.ports.api)
    check_request(fleet, inventory, seen.facts, wanted, emit, extra=extra)


def ask_head(
    inventory: Inventory,
    head: HostConnection,
    wanted: Mapping[str, Any] | None,
    consent: Consent,
    *,
    wait: float,
    emit: Emit,
    what: str,
) -> int:
    """Write what is wanted where the head's node program looks, once a person agrees to what it stops.

    `what` is it in the history, before the request. Returns the number of the request.
    """
    verb, runtime = what.split(maxsplit=1)[0], head.runtime
    state = RequestState(inventory, emit, runtime, verb, consent, wait, head=head, wanted=wanted, what=what)
    return phases.run(ASK, state).number


@dataclass(frozen=True)
class RequestState(phases.VerbState):
    """What the phases know that write a request to serve, or to stop."""

    head: HostConnection = phases.LATER
    wanted: Mapping[str, Any] | None = None
    what: str = ""
    number: int = 0

    def stops(self) -> Stops:
        """What the request would stop now."""
        return _stops(self.inventory, self.head, self.wanted)

    def hosts(self) -> Sequence[HostConnection]:
        """The head alone."""
        return [self.head]


def write_request(state: RequestState) -> RequestState:
    """Write what is wanted, and the history."""
    node = NodeHandle(state.head, state.inventory.cluster)
    number = serve_request.write(node, state.wanted)
    names = {host.address: name for name, host in state.inventory.hosts.items()}
    text = f"{state.what} {request.summary(state.wanted, names)}" if state.wanted else state.what
    record(node, state.verb, [text], state.emit, request=number)
    return replace(state, number=number)


ASK = (confirm, lock, compare_again, write_request, unlock)


def _stops(inventory: Inventory, head: HostConnection, wanted: Mapping[str, Any] | None) -> Stops:
    """What the request would stop, and in what it differs; nothing where it is served or being loaded already."""
    stops = served_on(NodeHandle(head, inventory.cluster))
    if stops.served is None or wanted is None:
        return stops
    if stops.served.generation == wanted["generation"]:
        return Stops()
    node = NodeHandle(head, inventory.cluster)
    # Where what was asked for last cannot be served, the head serves one that was ready before.
    known = [(serve_request.read(node) or {}).get("serve"), *reversed(ready_requests(node))]
    served = (one for one in known if isinstance(one, Mapping) and one.get("generation") == stops.served.generation)
    names = {host.address: name for name, host in inventory.hosts.items()}
    return replace(stops, changes=request.changes(next(served, None), wanted, names))


def _require_port(head: HostFacts, port: int) -> None:
    if port in head.listening:
        text = f"{head.host}: serve: port {port} is already in use (ports.api)"
        raise PreflightFailed(
            text, hint=f"on {head.host}: ss -ltnp 'sport = :{port}', then stop that process\nor set ports.api"
        )


def require_up(plan: Plan) -> None:
    """Refuse what `up` must do first, by host; what is only recorded about the members changes nothing that serves."""
    todo: dict[str, list[Operation]] = {}
    for operation in plan.operations():
        if not isinstance(operation, RecordMembers):
            todo.setdefault(operation.host, []).append(operation)
    if todo:
        hosts = by_hosts((_lacking(plan.cluster, operations), host) for host, operations in todo.items())
        lines = [f"the cluster is not up: {names}: {what}" for what, names in hosts.items()]
        raise PreflightFailed("\n".join(lines), hint="vcluster up")


def _lacking(cluster: str, operations: Sequence[Operation]) -> str:
    """What a host lacks that `up` would do these operations on."""
    for one in operations:
        if isinstance(one, RemoveContainer | StartNode | RestartNode) and one.name == node_name(cluster):
            return f"the node must be {one.past} ({one.why})"
    if any(isinstance(one, CreateNode) for one in operations):
        return "the node is missing"
    return operations[0].text


def _asked_already(
    head: HostConnection, inventory: Inventory, serving: ServeStatus | None, generation: str
) -> int | None:
    """The number of the request where the head has it already and it has not failed; None where it must be written."""
    asked = serve_request.read(NodeHandle(head, inventory.cluster)) or {}
    serve, number = asked.get("serve"), asked.get("epoch")
    if not isinstance(serve, Mapping) or not isinstance(number, int) or serve.get("generation") != generation:
        return None
    if serving is None or serving.request != number:
        return number  # it has not been taken yet
    return number if serving.generation == generation and serving.phase != "failed" else None
