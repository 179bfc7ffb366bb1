"""Stop serving, and leave the nodes."""

from __future__ import annotations

from dataclasses import replace

from vllm_cluster.actions.assess import connect_all, ensure_no_errors
from vllm_cluster.actions.consent import Confirm, Consent
from vllm_cluster.actions.follow import serving_on
from vllm_cluster.actions.serve import ask_head
from vllm_cluster.checks.docker import engine_problem, foreign
from vllm_cluster.core.node_status import ServeStatus
from vllm_cluster.core.spec import CLUSTER, HEAD_ADDRESS, ROLE, node_name
from vllm_cluster.errors import HostError, PreflightFailed
from vllm_cluster.events import Emit, Event
from vllm_cluster.facts.host_facts import Container, HostFacts
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run import serve_request
from vllm_cluster.run.connection import HostConnection
from vllm_cluster.run.node_handle import NodeHandle
from vllm_cluster.run.observe import observe
from vllm_cluster.run.runtime import SYSTEM, Runtime

POLL = 0.3
STOP_SECONDS = 90.0


def stop(inventory: Inventory, emit: Emit, *, confirm: Confirm, wait: float = 0.0, runtime: Runtime = SYSTEM) -> bool:
    """End serving and leave the nodes; returns whether anything was served.

    Needs the head alone: what must be stopped is often a model that fails because a worker is gone.

    Raises:
        Aborted, UsageError: the stop of what is served was not confirmed.
        PreflightFailed: the head's Docker cannot be used, or the node there is not this cluster's head.
    """
    with connect_all(inventory, emit, [inventory.head_name], runtime=runtime) as fleet:
        head = fleet.connections[inventory.head_name]
        node = _head_container(inventory, observe(inventory, head))
        runs = node is not None and node.state == "running"
        serving = serving_on(head, inventory) if runs else None
        if node is None or not (serving or _requested(head, inventory)):
            emit(Event("result", "No model is being served.", data={"stopped": False}))
            return False
        consent = Consent(confirm, inventory.cluster)
        ask_head(inventory, head, None, consent, wait=wait, emit=emit, what="stop")
        emit(Event("phase", "stopping"))
        deadline = runtime.after(STOP_SECONDS)
        while runs and serving_on(head, inventory) is not None:
            if not deadline.left():
                raise HostError(
                    head.name, f"stop: vLLM did not exit within {STOP_SECONDS:.0f} s", hint="vcluster status"
                )
            runtime.clock.sleep(POLL)
        emit(Event("result", _stopped(inventory, head, serving), data={"stopped": True}))
        return True


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


def _requested(head: HostConnection, inventory: Inventory) -> bool:
    """Whether the head would serve: it may not have begun, or its container may have ended meanwhile."""
    asked = serve_request.read(NodeHandle(head, inventory.cluster))
    # Unreadable: an empty request in its place is what is asked for.
    return asked is not None and asked.get("serve", True) is not None


def _stopped(inventory: Inventory, head: HostConnection, serving: ServeStatus | None) -> str:
    """What is left, as far as the head knows."""
    status = NodeHandle(head, inventory.cluster).state().status if serving else None
    if serving is None or status is None:
        return "Withdrew the request to serve."
    have, want = sum(node.gpus for node in status.ray.nodes if node.alive), serving.gpus[1]
    gpus = f"({have:g}/{want:g} GPUs)"
    if have == want:
        return f"Stopped {serving.name}. Cluster {inventory.cluster} is still up {gpus}."
    return f"Stopped {serving.name}. Cluster {inventory.cluster} is incomplete {gpus}: vcluster status"
