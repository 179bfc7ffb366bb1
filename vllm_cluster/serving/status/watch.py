"""The cluster again and again: what `status` shows and what its hosts and its model do now, also as a page here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from vllm_cluster.kernel.checks.own import not_own
from vllm_cluster.kernel.errors import UsageError, VclusterError
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.node.history import last_change
from vllm_cluster.kernel.plan.node_status import current, parse_status
from vllm_cluster.serving.status.counters import ModelLoad, RecentLoads
from vllm_cluster.serving.status.load import HostLoad, NodeSample, host_load
from vllm_cluster.serving.status.local_page import Content, LocalPage
from vllm_cluster.serving.status.samples import samples
from vllm_cluster.serving.status.status import (
    RUNNING,
    STARTING,
    ClusterStatus,
    HostState,
    assemble,
    look_at_host,
    unseen,
)
from vllm_cluster.wire.status import NodeStatus

# A host without a node is looked at again after so long, and then less and less often: a look costs it a script.
AGAIN_SECONDS, MAX_AGAIN_SECONDS = 2.0, 15.0
# The first picture waits for all hosts, but not for one that hangs.
FIRST_SECONDS = 20.0
# A host whose sample is later than this after it was due has its age in its row.
LATE_SECONDS = 5.0


@dataclass(frozen=True)
class View:
    """The cluster at one moment: `time` is this machine's clock, `loads` are those of the hosts that report any.

    `metrics_error` is why the model's load is not known; `replicas` is that of each, where there are several.
    """

    time: float
    status: ClusterStatus
    loads: Mapping[str, HostLoad] = field(default_factory=dict)
    model: ModelLoad | None = None
    metrics_error: str = ""
    replicas: Mapping[int, ModelLoad] = field(default_factory=dict)


def watch(
    inventory: Inventory,
    seconds: float,
    show: Callable[[View], object],
    *,
    number: int | None = None,
    runtime: Runtime = SYSTEM,
) -> None:
    """Show the cluster every so many seconds, `number` times or until it is interrupted; changes nothing.

    A host that is lost is a row with its reason, and is looked at again until it is back.
    """
    with Fleet(inventory, runtime) as fleet:
        watched = {name: _WatchedHost(inventory, one, seconds) for name, one in fleet.connections.items()}
        for one in watched.values():
            runtime.background(one.run, f"watch {one.name}")
        try:
            first = runtime.after(FIRST_SECONDS)
            for one in watched.values():
                one.settled.wait(first.left())
            due = runtime.clock.monotonic()
            while number is None or number > 0:
                show(_view(inventory, watched, seconds, runtime))
                number = None if number is None else number - 1
                if number == 0:
                    return
                now = runtime.clock.monotonic()
                due = max(due + seconds, now)
                runtime.clock.sleep(due - now)
        finally:
            for one in watched.values():
                one.stop()


@dataclass(frozen=True)
class _Look:
    """The last that is known of a host, and when a sample of it came."""

    state: HostState
    load: HostLoad | None = None
    sample: NodeSample | None = None
    model: ModelLoad | None = None
    replicas: Mapping[int, ModelLoad] = field(default_factory=dict)
    came: float | None = None


class _WatchedHost:
    """Keeps what is known of one host up to date, from a thread of its own."""

    def __init__(self, inventory: Inventory, connection: HostConnection, seconds: float) -> None:
        self.name = connection.name
        # Set once the first picture can show this host.
        self.settled = threading.Event()
        self.last: _Look | None = None
        self._inventory, self._connection, self._seconds = inventory, connection, seconds
        self._stopped, self._recent = threading.Event(), RecentLoads()

    def stop(self) -> None:
        """Begin nothing more; what is being read ends with the connection."""
        self._stopped.set()

    def run(self) -> None:
        """Watch until `stop`; never raises an error of the host."""
        pause = AGAIN_SECONDS
        while not self._stopped.is_set():
            began = self._connection.runtime.clock.monotonic()
            try:
                self._read()
            except VclusterError as error:
                if not self._stopped.is_set():
                    self.last = _Look(unseen(error))
            self._recent.clear()
            self.settled.set()
            watched = self._connection.runtime.clock.monotonic() - began > MAX_AGAIN_SECONDS
            pause = AGAIN_SECONDS if watched else pause
            self._stopped.wait(pause)
            pause = min(MAX_AGAIN_SECONDS, pause * 2)

    def _read(self) -> None:
        """Look at the host, and take the samples of its node where one runs."""
        state = look_at_host(self._inventory, self._connection)
        sampled = state.state in (RUNNING, STARTING) and _of_this_cluster(self._inventory, state)
        if not sampled or self.last is None:
            self.last = _Look(state)
        if sampled:
            node, head = NodeHandle(self._connection, self._inventory.cluster), self.name == self._inventory.head_name
            for sample in samples(node, self._seconds, head=head):
                if self._stopped.is_set():
                    return
                state = self._take(state, sample)

    def _take(self, state: HostState, sample: NodeSample) -> HostState:
        before, now = self.last.sample if self.last else None, self._connection.runtime.clock.monotonic()
        state = self._with_status(state, sample)
        serve = state.status.serve if state.status else None
        # Those of the head alone are shown; each costs memory.
        if serve and sample.metrics and self.name == self._inventory.head_name:
            self._recent.add(state.status.serves if state.status else (), sample.metrics, sample.boot)
        elif not (serve and sample.metrics_error):
            self._recent.clear()
        load = host_load(before, sample, gpus=self._inventory.accelerator != "cpu")
        # What was read of its texts is in the state and the load.
        seen = replace(sample, status="", metrics="")
        self.last = _Look(state, load, seen, self._recent.load(), self._recent.loads(), now)
        if before:
            self.settled.set()
        return state

    def _with_status(self, state: HostState, sample: NodeSample) -> HostState:
        """What the node program has written by now, and who changed the cluster last where its request is new."""
        written = parse_status(sample.status.encode(), self.name) if sample.status else None
        status = current(written, state.started, sample.time) if written else None
        changed = state.changed
        if state.role == "head" and _request(status) != _request(state.status):
            changed = last_change(NodeHandle(self._connection, self._inventory.cluster))
        age = max(0.0, sample.time - state.started)
        facts = replace(state.facts, clock=sample.time) if state.facts else None
        here = RUNNING if status else STARTING
        return replace(state, state=here, status=status, age=age, facts=facts, changed=changed)


def _of_this_cluster(inventory: Inventory, state: HostState) -> bool:
    """Whether the node there is of this cluster: another team's is not asked."""
    return state.facts is not None and not not_own(inventory, state.facts)


def _request(status: NodeStatus | None) -> int | None:
    return status.serve.request if status and status.serve else None


def _view(inventory: Inventory, watched: Mapping[str, _WatchedHost], seconds: float, runtime: Runtime) -> View:
    now = runtime.clock.monotonic()
    looks = {name: one.last or _Look(HostState("unknown", problem="no answer yet")) for name, one in watched.items()}
    states = {name: _aged(each, now, seconds) for name, each in looks.items()}
    head = looks[inventory.head_name]
    status = assemble(inventory, states)
    serve = status.head.serve if status.head else None
    error = head.sample.metrics_error if head.sample and serve else ""
    loads = {name: each.load for name, each in looks.items() if each.load}
    model, replicas = (None, {}) if error else (head.model, head.replicas)
    return View(runtime.clock.time(), status, loads, model, error, replicas)


def _aged(each: _Look, now: float, seconds: float) -> HostState:
    """The state of a host, with the age of what is known of it where that is late."""
    late = 0.0 if each.came is None else now - each.came
    if late <= seconds + LATE_SECONDS:
        return each.state
    return replace(each.state, problem=f"no sample for {late:.0f} s")


INTERVAL_SECONDS = 2.0


def dashboard(
    inventory: Inventory,
    show: Callable[[View], object],
    contents: Mapping[str, Content],
    opened: Callable[[str, int], object],
    *,
    port: int = 0,
    runtime: Runtime = SYSTEM,
) -> None:
    """Serve the contents until it is interrupted; `show` takes each view, `opened` the URL and its port.

    Raises:
        UsageError: the port cannot be used.
    """
    try:
        made = LocalPage(contents, port)
    except OSError as error:
        raise UsageError(f"cannot listen on 127.0.0.1:{port}: {error.strerror}", again=("--port", "0")) from None
    with made as page:
        opened(page.url, page.port)
        watch(inventory, INTERVAL_SECONDS, show, runtime=runtime)
