"""Stop serving, and leave the nodes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from vllm_cluster.kernel.checks.docker import engine_problem
from vllm_cluster.kernel.checks.finding import ensure_no_errors
from vllm_cluster.kernel.checks.own import require_own
from vllm_cluster.kernel.errors import HostError, NodeMissing
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.facts.docker_objects import Container
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.observe import observe
from vllm_cluster.kernel.hosts.reach import connect_all
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.plan.kept import left_by_head
from vllm_cluster.kernel.plan.spec import CLUSTER, node_name
from vllm_cluster.kernel.text import duration
from vllm_cluster.serving.ask_head import ask_head
from vllm_cluster.serving.consent import Confirm, Consent
from vllm_cluster.serving.others import order_in_force, the_model
from vllm_cluster.wire.reading import RefusedDocument
from vllm_cluster.wire.status import ServeStatus

POLL = 0.3
STOP_SECONDS = 90.0


def stop_serving(
    inventory: Inventory,
    emit: Emit,
    name: str | None = None,
    *,
    confirm: Confirm,
    wait: float = 0.0,
    drain: float | None = None,
    runtime: Runtime = SYSTEM,
) -> bool:
    """End serving a model, by its name where there are several, and leave the nodes; returns whether any was served.

    Needs the head alone: what must be stopped is often a model that fails because a worker is gone.

    Raises:
        Aborted, UsageError: the stop of what is served was not confirmed; or it is not known which is meant.
        PreflightFailed: the head's Docker cannot be used, or the node there is not this cluster's head.
        NodeMissing: it is gone, and what is to be stopped is kept for the next one.
    """
    consent = Consent(confirm, inventory.cluster)
    with connect_all(inventory, emit, [inventory.head_name], runtime=runtime) as fleet:
        node = NodeHandle(fleet.connections[inventory.head_name], inventory.cluster)
        container = _head_container(inventory, observe(inventory, node.connection))
        runs = container is not None and container.state == "running"
        rows = node.state().replicas if runs else ()
        names = dict.fromkeys((*(one.name for one in rows), *(order_in_force(node).names if container else ())))
        model = the_model(names, name, "stop")
        serving = next((one for one in rows if one.name == model), None)
        stops = container is not None and (serving is not None or _requested(node))
        if stops:
            asks = partial(ask_head, verb="stop", consent=consent, names=fleet.addresses, wait=wait)
            asks(node, (), emit, goes=(model,) if name else None, drain=drain or 0.0)
            more = f", after at most {duration(drain)} for open requests" if drain else ""
            emit(Event("phase", f"stopping{more}"))
            if runs:
                _await_exit(node, name, STOP_SECONDS + (drain or 0.0))
        text = _stopped(node, serving) if stops else "No model is being served."
        emit(Event("result", text, data={"stopped": stops}))
    return stops


def _await_exit(node: NodeHandle, model: str | None, seconds: float) -> None:
    runtime = node.connection.runtime
    deadline = runtime.after(seconds)
    while left := [one.words for one in node.state().replicas if model in (None, one.name)]:
        if not deadline.left():
            text = f"vLLM did not exit within {seconds:.0f} s: {'; '.join(dict.fromkeys(left))}"
            raise HostError(node.host, text, hint="vcluster status")
        runtime.clock.sleep(POLL)


def _head_container(inventory: Inventory, facts: HostFacts) -> Container | None:
    """The container of this cluster's head, None where there is none.

    Raises:
        PreflightFailed: as `stop`.
    """
    name = node_name(inventory.cluster)
    own = tuple(c for c in facts.containers if c.name == name and c.labels.get(CLUSTER) == inventory.cluster)
    problem = engine_problem(facts)
    # Beside a node of its own another cluster is not in the way; where there is none, it is what was meant by mistake.
    looked_at = replace(facts, containers=own) if own else facts
    ensure_no_errors([problem] if problem else [])
    require_own(inventory, looked_at)
    if not own and (left := left_by_head(inventory.cluster, facts)):
        raise NodeMissing(f"{facts.host}: {left}", hint="vcluster up\nvcluster stop")
    return own[0] if own else None


def _requested(node: NodeHandle) -> bool:
    """Whether the head would serve: it may not have begun, or its container may have ended meanwhile."""
    try:
        order = node.order()
    except RefusedDocument:
        # An order of nothing in its place is what is asked for.
        return True
    return order is not None and order.wanted is not None


def _stopped(node: NodeHandle, serving: ServeStatus | None) -> str:
    """What is left, as far as the head knows."""
    status = node.state().status if serving else None
    if serving is None or status is None:
        return "Withdrew the request to serve."
    have, want = sum(one.gpus for one in status.group.nodes if one.alive), serving.gpus[1]
    gpus = f"({have:g}/{want:g} GPUs)"
    if left := ", ".join(dict.fromkeys(one.name for one in status.serves)):
        return f"Stopped {serving.name}. Cluster {node.cluster} still serves {left}."
    if have == want:
        return f"Stopped {serving.name}. Cluster {node.cluster} is still up {gpus}."
    return f"Stopped {serving.name}. Cluster {node.cluster} is incomplete {gpus}: vcluster status"
