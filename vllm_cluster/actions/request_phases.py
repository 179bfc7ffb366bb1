"""The phases that `serve`, `stop` and `rollback` share: write a request on the head, and follow it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from vllm_cluster.actions import phases
from vllm_cluster.actions.assess import Assessment, assess, connect_all
from vllm_cluster.actions.consent import Stops, served_on
from vllm_cluster.actions.follow import Follower, continues_on_interrupt
from vllm_cluster.actions.phases import compare_again, confirm, lock, unlock
from vllm_cluster.core import request
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
from vllm_cluster.errors import PreflightFailed
from vllm_cluster.events import Event
from vllm_cluster.run import serve_request
from vllm_cluster.run.audit import record
from vllm_cluster.run.connection import HostConnection
from vllm_cluster.run.history import request_of
from vllm_cluster.run.node_handle import NodeHandle
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


@dataclass(frozen=True, kw_only=True)
class RequestState(phases.ChangingState):
    """What the phases know that write a request to serve, or to stop.

    `entry` is it in the history, before the request; `seen` the cluster as `serve` and `rollback` found it;
    `answers` where the model is ready already.
    """

    entry: str
    seen: Assessment = phases.LATER
    wanted: Mapping[str, Any] | None = None
    number: int = 0
    answers: bool = False
    log: bool = False

    @property
    def head(self) -> HostConnection:
        """The host whose node program reads the request."""
        return self.fleet.connections[self.inventory.head_name]

    @property
    def node(self) -> NodeHandle:
        """The node there."""
        return NodeHandle(self.head, self.inventory.cluster)

    def stops(self) -> Stops:
        """What the request would stop now."""
        return _stops(self.node, self.wanted, self.fleet.addresses)

    def hosts(self) -> Sequence[HostConnection]:
        """The head alone."""
        return [self.head]

    def title(self) -> str:
        """What happens, in the present tense."""
        raise NotImplementedError


R = TypeVar("R", bound=RequestState)


def connect(state: R) -> R:
    """Connect to every host."""
    opened = connect_all(state.inventory, state.emit, runtime=state.runtime)
    return replace(state, fleet=state.opened.enter_context(opened))


def observe(state: R) -> R:
    """Look at every host, and refuse a cluster that is not up."""
    seen = assess(state.inventory, state.fleet, state.emit, reading=Reading.NONE)
    _require_up(seen.plan)
    return replace(state, seen=seen)


def write_request(state: R) -> R:
    """Write what is wanted, and the history."""
    if state.idle:
        return state
    number = serve_request.write(state.node, state.wanted)
    text = f"{state.entry} {request.summary(state.wanted, state.fleet.addresses)}" if state.wanted else state.entry
    record(state.node, state.verb, [text], state.emit, request=number)
    return replace(state, number=number)


ASK = (confirm, lock, compare_again, write_request, unlock)


def follow(state: R) -> R:
    """Show how far the head is, until the model has answered."""
    if state.answers or state.wanted is None:
        return state
    state.emit(Event("phase", state.title()))
    with continues_on_interrupt(state.inventory.cluster, state.wanted["name"]):
        Follower(state.fleet, state.inventory, state.number, state.emit, asked=state.wanted, log=state.log).follow()
    return state


def _stops(node: NodeHandle, wanted: Mapping[str, Any] | None, names: Mapping[str, str]) -> Stops:
    """What the request would stop, and in what it differs; nothing where it is served or being loaded already."""
    stops = served_on(node)
    if stops.served is None or wanted is None:
        return stops
    if stops.served.generation == wanted["generation"]:
        return Stops()
    return replace(stops, changes=request.changes(request_of(node, stops.served.generation), wanted, names))


def _require_up(plan: Plan) -> None:
    """Refuse what `up` must do first, by host; what is only recorded about the members changes nothing that serves."""
    todo: dict[str, list[Operation]] = {}
    for operation in plan.operations():
        if not isinstance(operation, RecordMembers):
            todo.setdefault(operation.host, []).append(operation)
    if todo:
        lacking = {host: _lacking(plan.cluster, operations) for host, operations in todo.items()}
        hosts = by_hosts((what, host) for host, what in lacking.items())
        # It may run and serve: a newer vcluster, or a changed inventory, has other nodes.
        runs = all(what.startswith(_RENEWED) for what in lacking.values())
        state = "the cluster runs, but vcluster up must renew it first" if runs else "the cluster is not up"
        lines = [f"{state}: {names}: {what}" for what, names in hosts.items()]
        raise PreflightFailed("\n".join(lines), hint="vcluster plan\nvcluster up" if runs else "vcluster up")


_RENEWED = "the node must be recreated"


def _lacking(cluster: str, operations: Sequence[Operation]) -> str:
    """What a host lacks that `up` would do these operations on."""
    made = next((one for one in operations if isinstance(one, CreateNode)), None)
    if made and any(isinstance(one, RemoveContainer) and one.name == node_name(cluster) for one in operations):
        return f"{_RENEWED} ({made.reason})"
    for one in operations:
        if isinstance(one, RemoveContainer | StartNode | RestartNode) and one.name == node_name(cluster):
            return f"the node must be {one.past} ({one.reason})"
    if any(isinstance(one, CreateNode) for one in operations):
        return "the node is missing"
    return operations[0].text
