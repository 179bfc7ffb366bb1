"""Stop serving, and leave the nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vllm_cluster.actions import phases
from vllm_cluster.actions.assess import connect_all, ensure_no_errors
from vllm_cluster.actions.consent import Confirm, Consent
from vllm_cluster.actions.request_phases import ASK, RequestState
from vllm_cluster.checks.docker import engine_problem, foreign
from vllm_cluster.core.node_status import ServeStatus
from vllm_cluster.core.spec import CLUSTER, HEAD_ADDRESS, ROLE, node_name
from vllm_cluster.errors import HostError, PreflightFailed
from vllm_cluster.events import Emit, Event
from vllm_cluster.facts.host_facts import Container, HostFacts
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run import serve_request
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
    state = StopState(
        inventory=inventory,
        emit=emit,
        runtime=runtime,
        verb="stop",
        entry="stop",
        consent=Consent(confirm, inventory.cluster),
        wait=wait,
    )
    return not phases.run(STOP, state, report=_report).idle


@dataclass(frozen=True, kw_only=True)
class StopState(RequestState):
    """What the phases of `stop` know: whether the head's node runs, and what it serves."""

    runs: bool = False
    serving: ServeStatus | None = None


def connect_head(state: StopState) -> StopState:
    """Connect to the head."""
    opened = connect_all(state.inventory, state.emit, [state.inventory.head_name], runtime=state.runtime)
    return replace(state, fleet=state.opened.enter_context(opened))


def find_served(state: StopState) -> StopState:
    """Find out what is served, or was asked for."""
    container = _head_container(state.inventory, observe(state.inventory, state.head))
    runs = container is not None and container.state == "running"
    serving = state.node.state().serving if runs else None
    return replace(state, runs=runs, serving=serving, idle=container is None or not (serving or _requested(state.node)))


def await_exit(state: StopState) -> StopState:
    """Wait until vLLM has exited."""
    if state.idle:
        return state
    state.emit(Event("phase", "stopping"))
    deadline = state.runtime.after(STOP_SECONDS)
    while state.runs and state.node.state().serving is not None:
        if not deadline.left():
            text = f"stop: vLLM did not exit within {STOP_SECONDS:.0f} s"
            raise HostError(state.head.name, text, hint="vcluster status")
        state.runtime.clock.sleep(POLL)
    return state


STOP = (connect_head, find_served, *ASK, await_exit)


def _report(state: StopState) -> None:
    text = "No model is being served." if state.idle else _stopped(state)
    state.emit(Event("result", text, data={"stopped": not state.idle}))


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
    asked = serve_request.read(node)
    # Unreadable: an empty request in its place is what is asked for.
    return asked is not None and asked.get("serve", True) is not None


def _stopped(state: StopState) -> str:
    """What is left, as far as the head knows."""
    serving = state.serving
    status = state.node.state().status if serving else None
    if serving is None or status is None:
        return "Withdrew the request to serve."
    have, want = sum(node.gpus for node in status.group.nodes if node.alive), serving.gpus[1]
    gpus = f"({have:g}/{want:g} GPUs)"
    if have == want:
        return f"Stopped {serving.name}. Cluster {state.inventory.cluster} is still up {gpus}."
    return f"Stopped {serving.name}. Cluster {state.inventory.cluster} is incomplete {gpus}: vcluster status"
