"""Wait until the cluster has its GPUs, or until its model answers."""

from __future__ import annotations

from vllm_cluster.kernel.errors import (
    AuthenticationFailed,
    ConnectionLost,
    HostError,
    HostKeyRejected,
    TimedOut,
    Unreachable,
    VclusterError,
    WaitTimedOut,
)
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.hosts.connection import Fleet
from vllm_cluster.kernel.hosts.observe import RECORD_FILE
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.handle import NodeHandle, open_node
from vllm_cluster.kernel.plan.members import Record
from vllm_cluster.kernel.plan.node_status import absent, membership
from vllm_cluster.wire.status import NodeStatus

POLL = 1.0
# A head that is moved or recreated by `up` is missing for a moment; one that stays missing does not come by itself.
MISSING_SECONDS = 30.0


def wait(inventory: Inventory, emit: Emit, seconds: float, *, gpus: bool = False, runtime: Runtime = SYSTEM) -> float:
    """Wait until Ray has exactly the planned GPUs, or without `gpus` until the model answers; the seconds it took.

    Raises:
        HostError: it never will, and why.
        Unreachable: the head did not answer in time.
        PreflightFailed: there is no node on the head, and none came for a while.
        WaitTimedOut: it was not so in time.
    """
    began, deadline = runtime.clock.monotonic(), runtime.after(seconds)
    emit(Event("phase", f"waiting for {'the GPUs' if gpus else 'the model'} of {inventory.cluster}"))
    head, shown = inventory.head_name, ""
    node: NodeHandle | None = None
    missing = runtime.after(MISSING_SECONDS)
    with Fleet(inventory, runtime, [head]) as fleet:
        while True:
            away: HostError | None = None
            try:
                node = node or open_node(inventory, fleet.connections[head])
                status = node.state().status
            except (HostKeyRejected, AuthenticationFailed):
                raise
            except (Unreachable, ConnectionLost, TimedOut) as error:
                node, away = None, error
                text = f"{head} does not answer: {error.detail.splitlines()[0]}"
            except VclusterError:
                if not missing.left():
                    raise
                text = f"the node of {head} does not run"
            else:
                missing = runtime.after(MISSING_SECONDS)
                text = _awaited_gpus(inventory, node, status) if gpus else _awaited_model(head, status)
            if not text:
                return runtime.clock.monotonic() - began
            if text != shown:
                emit(Event("progress", text))
                shown = text
            if not deadline.left():
                late = f"{inventory.cluster}: timed out after {seconds:.0f} s: {text}"
                raise away if isinstance(away, Unreachable) else WaitTimedOut(late, hint="vcluster status")
            runtime.clock.sleep(min(POLL, max(deadline.left(), 0.01)))


def _awaited_gpus(inventory: Inventory, node: NodeHandle, status: NodeStatus | None) -> str:
    """Which GPUs are waited for; empty when exactly the planned ones are there."""
    if status is None:
        return f"{node.host}: the node has not reported yet"
    record, _ = Record.read(node.read(RECORD_FILE))
    names = {host.address: host.name for host in inventory.hosts.values()}
    planned = {one.address: one.gpus for one in record.members if not one.leaving} if record else {}
    found = membership(planned, status.group.nodes)
    lacking = [name for address, name in names.items() if address in found.missing or address not in planned]
    others = [address for address in found.foreign if address not in names]
    wrong = [names.get(address, address) for address in found.wrong]
    away = absent(status.roll, {address: names.get(address, address) for address in planned})
    if not (lacking or others or wrong or away):
        return ""
    parts = [f"{', '.join(lacking)} not joined"] * bool(lacking)
    parts += [f"{name}: {why}" for name, why in away.items() if name not in lacking]
    parts += [f"another number of GPUs on {', '.join(wrong)}"] * bool(wrong)
    parts += [f"{', '.join(others)} not in the inventory"] * bool(others)
    return f"GPUs {found.have}/{found.want}: {'; '.join(parts)}"


def _awaited_model(head: str, status: NodeStatus | None) -> str:
    """How far the model is; empty when it is ready.

    Raises:
        HostError: it never will be.
    """
    if status is None:
        return f"{head}: the node has not reported yet"
    serve = status.serve
    if serve is None:
        raise HostError(head, "wait: no model is served or requested", hint="vcluster serve MODEL")
    if serve.phase == "failed":
        why = serve.first_failure or serve.failure
        text = f"wait: {serve.name} failed: {why.summary if why else serve.detail}"
        raise HostError(head, text, hint="vcluster explain")
    return "" if serve.phase == "ready" else f"{serve.name}: {serve.words}"
