"""The cluster as it is before a model is asked for: every host is looked at, and `up` has nothing left to do."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_cluster.kernel.assess import Assessment, assess
from vllm_cluster.kernel.errors import PreflightFailed
from vllm_cluster.kernel.events import Emit
from vllm_cluster.kernel.hosts.connection import Fleet
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.plan import (
    CreateNode,
    Operation,
    Plan,
    RecordMembers,
    RemoveContainer,
    RestartNode,
    StartNode,
)
from vllm_cluster.kernel.plan.spec import node_name
from vllm_cluster.kernel.text import by_hosts

_RENEWED = "the node must be recreated"


def look_up(inventory: Inventory, fleet: Fleet, emit: Emit) -> Assessment:
    """Look at every host.

    Raises:
        PreflightFailed: the cluster is not up.
    """
    seen = assess(inventory, fleet, emit, read=False)
    _require_up(seen.plan)
    return seen


def _require_up(plan: Plan) -> None:
    """Refuse what `up` must do first, by host; what is only recorded about the members changes nothing that serves.

    Nor does what an interrupted run left, which `up` removes too.
    """
    todo: dict[str, list[Operation]] = {}
    for operation in plan.operations():
        left = isinstance(operation, RemoveContainer) and operation.name != node_name(plan.cluster)
        if not (left or isinstance(operation, RecordMembers)):
            todo.setdefault(operation.host, []).append(operation)
    if todo:
        lacking = {host: _lacking(plan.cluster, operations) for host, operations in todo.items()}
        hosts = by_hosts((what, host) for host, what in lacking.items())
        # It may run and serve: a newer vcluster, or a changed inventory, has other nodes.
        runs = all(what.startswith(_RENEWED) for what in lacking.values())
        state = "the cluster runs, but vcluster up must renew it first" if runs else "the cluster is not up"
        lines = [f"{state}: {names}: {what}" for what, names in hosts.items()]
        raise PreflightFailed("\n".join(lines), hint="vcluster plan\nvcluster up" if runs else "vcluster up")


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
