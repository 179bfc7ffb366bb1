"""Stop serving, and leave the nodes."""

from __future__ import annotations

from dataclasses import replace

from vllm_cluster.kernel.assess import connect_all, ensure_no_errors
from vllm_cluster.kernel.checks.docker import engine_problem, foreign
from vllm_cluster.kernel.errors import HostError, PreflightFailed
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.facts.docker_objects import Container
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.observe import observe
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.plan.spec import CLUSTER, HEAD_ADDRESS, ROLE, node_name
from vllm_cluster.serving.ask_head import ask_head
from vllm_cluster.serving.consent import Confirm, Consent
from vllm_cluster.wire.reading import RefusedDocument
from vllm_cluster.wire.status import ServeStatus

POLL = 0.3
STOP_SECONDS = 90.0


def stop(inventory: Inventory, emit: Emit, *, confirm: Confirm, wait: float = 0.0, runtime: Runtime = SYSTEM) -> bool:
    """End serving and leave the nodes; returns whether anything was served.

    Needs the head alone: what must be stopped is often a model that fails because a worker is gone.

    Raises:
        Aborted, UsageError: the stop of what is served was not confirmed.
        PreflightFailed: the head's Docker cannot be used, or the node there is not this cluster's head.
    """
    consent = Consent(confirm, inventory.cluster)
    with connect_all(inventory, emit, [inventory.head_name], runtime=runtime) as fleet:
        node = NodeHandle(fleet.connections[inventory.head_name], inventory.cluster)
        container = _head_container(inventory, observe(inventory, node.connection))
        runs = container is not None and container.state == "running"
        serving = node.state().serving if runs else None
        stops = container is not None and (serving is not None or _requested(node))
        if stops:
            names = fleet.addresses
            ask_head(node, (), emit, verb="stop", consent=consent, names=names, wait=wait)
            emit(Event("phase", "stopping"))
            if runs:
                _await_exit(node)
        text = _stopped(node, serving) if stops else "No model is being served."
        emit(Event("result", text, data={"stopped": stops}))
    return stops


def _await_exit(node: NodeHandle) -> None:
    runtime = node.connection.runtime
    deadline = runtime.after(STOP_SECONDS)
    while node.state().serving is not None:
        if not deadline.left():
            text = f"stop: vLLM did not exit within {STOP_SECONDS:.0f} s"
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
    ensure_no_errors([problem] if problem else list(foreign(inventory, {facts.host: looked_at})))
    for container in own:
        if container.labels.get(ROLE) == "worker":
            text = f"{facts.host}: the node there is a worker of the head at {container.labels.get(HEAD_ADDRESS)}"
            raise PreflightFailed(text, hint="set head: to that host in the inventory, or:\nvcluster up")
        return container
    return None


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
    if have == want:
        return f"Stopped {serving.name}. Cluster {node.cluster} is still up {gpus}."
    return f"Stopped {serving.name}. Cluster {node.cluster} is incomplete {gpus}: vcluster status"
