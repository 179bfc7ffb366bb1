"""Wait until the model of the cluster answers."""

from __future__ import annotations

from vllm_cluster.kernel.errors import (
    AuthenticationFailed,
    ConnectionLost,
    HostError,
    HostKeyRejected,
    OpenSshNeeded,
    TimedOut,
    Unreachable,
    VclusterError,
    WaitTimedOut,
)
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.hosts.connection import Fleet
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.handle import NodeHandle, open_node
from vllm_cluster.wire.status import NodeStatus

POLL = 1.0
# A head that is moved or recreated by `up` is missing for a moment; one that stays missing does not come by itself.
MISSING_SECONDS = 30.0


def wait(inventory: Inventory, emit: Emit, seconds: float, *, runtime: Runtime = SYSTEM) -> float:
    """Wait until the model answers; the seconds it took.

    Raises:
        HostError: it never will, and why.
        Unreachable: the head did not answer in time.
        PreflightFailed: there is no node on the head, and none came for a while.
        WaitTimedOut: it was not so in time.
    """
    began, deadline = runtime.clock.monotonic(), runtime.after(seconds)
    emit(Event("phase", f"waiting for the model of {inventory.cluster}"))
    head, shown = inventory.head_name, ""
    node: NodeHandle | None = None
    missing = runtime.after(MISSING_SECONDS)
    with Fleet(inventory, runtime, [head]) as fleet:
        while True:
            away: HostError | None = None
            try:
                node = node or open_node(inventory, fleet.connections[head])
                status = node.state().status
            except (HostKeyRejected, AuthenticationFailed, OpenSshNeeded):
                raise
            except (Unreachable, ConnectionLost, TimedOut) as error:
                node, away = None, error
                first, _, _ = error.detail.partition("\n")
                text = f"{head} does not answer: {first}"
            except VclusterError:
                if not missing.left():
                    raise
                text = f"the node of {head} does not run"
            else:
                missing = runtime.after(MISSING_SECONDS)
                text = _awaited_model(head, status)
            if not text:
                return runtime.clock.monotonic() - began
            if text != shown:
                emit(Event("progress", text))
                shown = text
            if not deadline.left():
                late = f"{inventory.cluster}: timed out after {seconds:.0f} s: {text}"
                raise away if isinstance(away, Unreachable) else WaitTimedOut(late, hint="vcluster status")
            runtime.clock.sleep(min(POLL, max(deadline.left(), 0.01)))


def _awaited_model(head: str, status: NodeStatus | None) -> str:
    """How far the model is; empty when it is ready.

    Raises:
        HostError: it never will be.
    """
    if status is None:
        return f"{head}: the node has not reported yet"
    rows = status.serves
    serve = max(rows, key=lambda one: (one.phase == "failed", one.phase != "ready"), default=None)
    if serve is None:
        raise HostError(head, "wait: no model is served or requested", hint="vcluster serve MODEL")
    if serve.phase == "failed":
        why = serve.first_failure or serve.failure
        text = f"wait: {serve.name} failed: {why.summary if why else serve.detail}"
        raise HostError(head, text, hint="vcluster explain")
    if serve.phase == "ready":
        return ""
    replicas = [one for one in rows if one.name == serve.name]
    if len(replicas) == 1:
        return f"{serve.name}: {serve.words}"
    ready = sum(one.phase == "ready" for one in replicas)
    return f"{serve.name}: replica {serve.index}: {serve.words}; {ready} of {len(replicas)} ready"
