"""What `serve`, `stop` and `rollback` share: write a request on the head, and follow it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_cluster.actions.assess import Assessment, assess
from vllm_cluster.actions.consent import Consent, Stops, served_on
from vllm_cluster.actions.follow import Follower, continues_on_interrupt
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
from vllm_cluster.events import Emit, Event, waiting
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run import serve_request
from vllm_cluster.run.connection import Fleet
from vllm_cluster.run.history import record
from vllm_cluster.run.lease import Lease
from vllm_cluster.run.node_handle import NodeHandle
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


def look_up(inventory: Inventory, fleet: Fleet, emit: Emit) -> Assessment:
    """Look at every host.

    Raises:
        PreflightFailed: the cluster is not up.
    """
    seen = assess(inventory, fleet, emit, read=False)
    _require_up(seen.plan)
    return seen


def ask_head(
    node: NodeHandle,
    wanted: Mapping[str, Any] | None,
    emit: Emit,
    *,
    verb: str,
    entry: str = "",
    consent: Consent,
    names: Mapping[str, str],
    then: str = "",
    wait: float = 0.0,
) -> int:
    """Write what is wanted, or None for nothing, once what that stops is confirmed; returns the request's number.

    `entry` is what the history has before the request, if not the verb; `then` is what follows the stop, for the
    question; `names` are those of the hosts, by address.

    Raises:
        Aborted, UsageError, PreflightFailed: as `Consent.ask`.
        Locked: another run holds the lease.
    """
    while True:
        # Never asked with the lease in hand: a person who is away from the terminal would lock everybody out.
        consent.ask(stopped_for(node, wanted), then)
        with Lease([node.connection], node.cluster, verb) as lease:
            lease.acquire(wait, waiting(emit))
            if consent.covers(stopped_for(node, wanted)):
                number = serve_request.write(node, wanted)
                text = f"{entry or verb} {request.summary(wanted, names)}" if wanted else verb
                record(node, verb, [text], emit, request=number)
                return number


def follow(
    fleet: Fleet, inventory: Inventory, number: int, wanted: Mapping[str, Any], emit: Emit, *, title: str
) -> None:
    """Show how far the head is with a request, until the model has answered."""
    emit(Event("phase", title))
    with continues_on_interrupt(inventory.cluster, wanted["name"]):
        Follower(fleet, inventory, number, emit, asked=wanted).follow()


def stopped_for(node: NodeHandle, wanted: Mapping[str, Any] | None) -> Stops:
    """What the request would stop; nothing where it is served or being loaded already."""
    stops = served_on(node)
    same = stops.served is not None and wanted is not None and stops.served.generation == wanted["generation"]
    return Stops() if same else stops


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
