"""Wait until the cluster has its GPUs, or until its model answers."""

from __future__ import annotations

from vllm_cluster.core.members import Record
from vllm_cluster.core.node_status import NodeStatus, membership
from vllm_cluster.errors import (
    AuthenticationFailed,
    ConnectionLost,
    HostError,
    HostKeyRejected,
    TimedOut,
    Unreachable,
    VclusterError,
    WaitTimedOut,
)
from vllm_cluster.events import Emit, Event
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.connection import Fleet, HostConnection
from vllm_cluster.run.node_handle import NodeHandle, open_node
from vllm_cluster.run.observe import RECORD_FILE
from vllm_cluster.run.runtime import SYSTEM, Runtime

POLL = 1.0
# A head that is moved or recreated by `up` is missing for a moment; one that stays missing does not come by itself.
MISSING_SECONDS = 30.0
_AWAY = (Unreachable, ConnectionLost, TimedOut)
_FOR_GOOD = (HostKeyRejected, AuthenticationFailed)


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
    with Fleet(inventory, runtime) as fleet:
        head = _Head(inventory, fleet.connections[inventory.head_name])
        shown, away = "", None
        while True:
            text, away = head.look(gpus=gpus)
            if not text:
                return runtime.clock.monotonic() - began
            if text != shown:
                emit(Event("progress", text))
                shown = text
            if not deadline.left():
                late = f"{inventory.cluster}: timed out after {seconds:.0f} s: {text}"
                raise away if isinstance(away, Unreachable) else WaitTimedOut(late, hint="vcluster status")
            runtime.clock.sleep(min(POLL, max(deadline.left(), 0.01)))


class _Head:
    """The head, looked at again and again, also over a new connection."""

    def __init__(self, inventory: Inventory, connection: HostConnection) -> None:
        self._inventory, self._connection = inventory, connection
        self._node: NodeHandle | None = None
        self._missing = connection.runtime.after(MISSING_SECONDS)
        self._other = connection.runtime.after(MISSING_SECONDS)

    def look(self, *, gpus: bool) -> tuple[str, VclusterError | None]:
        """What is waited for, empty when it is there; and why the head could not be asked.

        Raises:
            HostError: it will never be there.
        """
        try:
            if self._node is None:
                self._node = open_node(self._inventory, self._connection)
            state = self._node.state()
        except _FOR_GOOD:
            raise
        except _AWAY as error:
            self._node = None
            return f"{self._connection.name} does not answer: {error.detail.splitlines()[0]}", error
        except VclusterError:
            if not self._missing.left():
                raise
            return f"the node of {self._connection.name} does not run", None
        self._missing = self._connection.runtime.after(MISSING_SECONDS)
        if state.status is None:
            return f"{self._connection.name}: the node has not reported yet", None
        return (self._gpus(self._node, state.status) if gpus else self._model(state.status)), None

    def _gpus(self, node: NodeHandle, status: NodeStatus) -> str:
        record, _ = Record.read(node.read(RECORD_FILE))
        names = {host.address: host.name for host in self._inventory.hosts.values()}
        planned = {one.address: one.gpus for one in record.members if not one.leaving} if record else {}
        if planned and (address := self._inventory.hosts[self._inventory.head_name].address) not in planned:
            self._refuse_other(address)
        found = membership(planned, status.group.nodes)
        absent = [name for address, name in names.items() if address in found.missing or address not in planned]
        others = [address for address in found.foreign if address not in names]
        wrong = [names.get(address, address) for address in found.wrong]
        if not (absent or others or wrong):
            return ""
        parts = [f"{', '.join(absent)} not in Ray"] * bool(absent)
        parts += [f"another number of GPUs on {', '.join(wrong)}"] * bool(wrong)
        parts += [f"{', '.join(others)} not in the inventory"] * bool(others)
        return f"GPUs {found.have}/{found.want}: {'; '.join(parts)}"

    def _refuse_other(self, address: str) -> None:
        """An `up` under way gives the head its new address; without one that never comes."""
        if not self._other.left():
            text = f"wait: the cluster runs without the head's address {address}"
            raise HostError(self._connection.name, text, hint="vcluster up")

    def _model(self, status: NodeStatus) -> str:
        serve = status.serve
        if serve is None:
            raise HostError(self._connection.name, "wait: no model is served or requested", hint="vcluster serve MODEL")
        if serve.phase == "failed":
            why = serve.first_failure or serve.failure
            text = f"wait: {serve.name} failed: {why.summary if why else serve.detail}"
            raise HostError(self._connection.name, text, hint="vcluster explain")
        if serve.phase == "ready":
            return ""
        return f"{serve.name}: {serve.phase}" + (f": {serve.detail}" if serve.detail else "")
