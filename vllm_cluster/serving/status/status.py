"""What the cluster is right now, host by host, whether all of it answers or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from vllm_cluster.kernel.checks.docker import engine_problem
from vllm_cluster.kernel.checks.own import worker_for_head
from vllm_cluster.kernel.errors import (
    ConnectionLost,
    DockerError,
    HostError,
    ShellUnusable,
    TimedOut,
    Unreachable,
    VclusterError,
)
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.hosts.lent import show_end
from vllm_cluster.kernel.hosts.observe import observe
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.node.history import AuditEntry, last_change
from vllm_cluster.kernel.node.program import program_digest
from vllm_cluster.kernel.plan.desired import found_gpus, intent
from vllm_cluster.kernel.plan.diff import other_program
from vllm_cluster.kernel.plan.identity import decide_cluster_id, find_foreign, node_of
from vllm_cluster.kernel.plan.kept import STARTED_AGAIN, left_by_head
from vllm_cluster.kernel.plan.members import Record, former, record_of
from vllm_cluster.kernel.plan.node_status import absent, last_words
from vllm_cluster.kernel.plan.spec import ROLE, node_name, stored_spec
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.text import count
from vllm_cluster.wire.status import GroupNode, NodeStatus

# States of a host. The first five are its container's; what is unknown could not be looked at.
RUNNING, STARTING, STOPPED, PAUSED, MISSING = "running", "starting", "stopped", "paused", "missing"
UNREACHABLE, DOCKER_ERROR, SHELL_ERROR, UNKNOWN = "unreachable", "docker-error", "shell-error", "unknown"

OUTSIDE = "not in the inventory"
# A node without beats is silent for the head after 5 s. A host that does not answer SSH is waited for longer, and its
# row must not be beside a roll and a model of before.
NOTICED_SECONDS = 5.0


@dataclass(frozen=True)
class HostStatus:
    """One host's row. `gpus` is what the inventory or the host has, `joined_gpus` what Ray on the head counts there.

    Both are None where they are unknown. `problem` may have several lines; `age_seconds` is the container's.
    """

    host: str
    address: str
    role: str
    state: str
    container: str
    gpus: int | None
    joined_gpus: int | None
    problem: str = ""
    fix: str = ""
    age_seconds: float | None = None


@dataclass(frozen=True)
class ClusterStatus:
    """The whole: up is true only when every node runs and Ray counts exactly the GPUs of all hosts.

    `now` is the head's clock, by which the times of its status are meant; `changed` is the last change of the cluster.
    `unknown` is why it is not known what is served, where no node of the head can be asked; empty: none would know.
    """

    cluster: str
    id: str | None
    up: bool
    hosts: tuple[HostStatus, ...]
    head: NodeStatus | None
    unreachable: tuple[str, ...]
    head_state: str = RUNNING
    now: float | None = None
    changed: AuditEntry | None = None
    unknown: str = ""

    @property
    def summary(self) -> str:
        """Whether it is up, and the GPUs of the inventory's hosts, also of those that could not be asked."""
        own = [host for host in self.hosts if host.role in ("head", "worker")]
        counted = None if any(host.joined_gpus is None for host in own) else sum(host.joined_gpus or 0 for host in own)
        total = None if any(host.gpus is None for host in own) else sum(host.gpus or 0 for host in own)
        joined = f"{number_text(counted)}/{number_text(total)} GPUs joined"
        return f"{self.cluster} is {'up' if self.up else 'not up'}: {joined}"

    @property
    def served(self) -> bool | None:
        """Whether something is to be served; None where the head could not be asked, or writes nothing any more."""
        if self.head is not None:
            if self.head.serve is None and self.head.group.state == "unknown":
                return None
            return self.head.serve is not None
        return False if self.head_state in (MISSING, STOPPED) and not self.unknown else None

    @property
    def ready(self) -> bool:
        """Whether the cluster matches the inventory, and what is to be served is ready."""
        serves = (self.head.serve, *self.head.replicas) if self.head else ()
        return self.up and all(serve is None or serve.phase == "ready" for serve in serves)


@dataclass(frozen=True)
class HostState:
    """What was found on one host; `started` is when its container was, by the host's clock."""

    state: str
    container: str = ""
    role: str = ""
    gpus: int | None = None
    status: NodeStatus | None = None
    problem: str = ""
    fix: str = ""
    facts: HostFacts | None = None
    age: float | None = None
    changed: AuditEntry | None = None
    started: float = 0.0


def number_text(value: int | None) -> str:
    """Return a number for people, `?` where it is unknown."""
    return "?" if value is None else str(value)


def look_at_cluster(inventory: Inventory, emit: Emit, *, runtime: Runtime = SYSTEM) -> ClusterStatus:
    """Look at every host that answers; changes nothing."""
    head, looked = inventory.head_name, dict[str, float]()

    def look(connection: HostConnection) -> HostState:
        state = look_at_host(inventory, connection)
        looked[connection.name] = runtime.clock.monotonic()
        return state

    with Fleet(inventory, runtime) as fleet:
        show_end(inventory, emit, runtime)
        emit(Event("phase", f"inspecting {count(len(inventory.hosts), 'host')}"))
        rows, failures = fleet.each(look)
        if failures and head in rows and runtime.clock.monotonic() - looked[head] > NOTICED_SECONDS:
            again, lost = fleet.each(look, [head])
            rows, failures = rows | again, failures | lost
    return assemble(inventory, rows | {name: unseen(error) for name, error in failures.items()})


def assemble(inventory: Inventory, given: Mapping[str, HostState]) -> ClusterStatus:
    """The whole, by what was found on each host."""
    rows = dict(given)
    facts = {name: row.facts for name, row in rows.items() if row.facts}
    for other in find_foreign(inventory, facts):
        rows[other.host] = replace(rows[other.host], state="foreign", status=None, problem=other.text, fix="")
    first, unserved = _head_of(inventory, rows, given[inventory.head_name])
    found = record_of(inventory, facts)
    record = found.record if found else None
    expected = {member.name: member.gpus for member in record.members} if record else {}
    away = _away(inventory, rows)
    hosts = tuple(
        _host(inventory, name, rows[name], first, expected.get(name), away=away.get(name, ""))
        for name in inventory.hosts
    )
    left = _former(inventory, facts, record, first)
    unknown = _unknown(inventory, first.status, left)
    up = (
        not unknown
        and not any(host.joined_gpus for host in left)
        and not away
        and all(host.state == RUNNING and host.joined_gpus == host.gpus and host.gpus for host in hosts)
    )
    return ClusterStatus(
        inventory.cluster,
        decide_cluster_id(inventory, facts),
        bool(up),
        hosts + left + unknown,
        first.status,
        tuple(name for name, row in rows.items() if row.state == UNREACHABLE),
        first.state,
        first.facts.clock if first.facts else None,
        first.changed,
        unserved,
    )


def _head_of(inventory: Inventory, rows: dict[str, HostState], found: HostState) -> tuple[HostState, str]:
    """What the inventory's head is worth as the head, and why what is served is not known, where that is so.

    A worker there knows neither who has joined nor what is served; its row shows whose it is, as it was `found`.
    """
    name, cluster = inventory.head_name, inventory.cluster
    if worker := worker_for_head(inventory, found.facts) if found.facts else None:
        rows[name] = replace(found, status=None, problem=worker.message, fix=worker.fix)
        return replace(rows[name], state=UNKNOWN), f"{name} is a worker, and not the head"
    head = rows[name]
    if head.state == STOPPED:
        return head, f"the head's node does not run; {STARTED_AGAIN}"
    if head.state != MISSING or head.facts is None:
        return head, ""
    others = any(row.facts and node_of(cluster, row.facts) for row in rows.values())
    missing = "the head's node is missing, and other hosts have nodes" if others else ""
    return head, left_by_head(cluster, head.facts) or missing


def look_at_host(inventory: Inventory, connection: HostConnection) -> HostState:
    """What is on one host.

    Raises:
        HostError: it cannot be reached, or does not answer.
    """
    # Connected here and not all at first: a host that hangs at its login holds up no other.
    try:
        connection.connect()
        facts = observe(inventory, connection)
    except ShellUnusable as error:
        return HostState(SHELL_ERROR, problem=error.detail, fix=error.hint or "")
    return host_state(inventory, connection, facts)


def host_state(inventory: Inventory, connection: HostConnection, facts: HostFacts) -> HostState:
    """What is on one host, by its facts and what its node writes now.

    Raises:
        HostError: it does not answer any more.
    """
    gpus = inventory.hosts[connection.name].gpu_number or found_gpus(facts, inventory.accelerator)
    problem = engine_problem(facts)
    if problem:
        return HostState(DOCKER_ERROR, gpus=gpus or None, problem=problem.message, fix=problem.fix)
    container = node_of(inventory.cluster, facts)
    if container is None:
        return HostState(MISSING, gpus=gpus, problem="the node is missing", fix="vcluster up", facts=facts)
    short, role = container.id[:12], container.labels.get(ROLE, "")
    row = HostState(container.state, short, role, gpus, facts=facts)
    if container.state != RUNNING:
        state = container.state if container.state in (PAUSED, "restarting") else STOPPED
        fix = (
            command_line("docker", "unpause", container.name, on=connection.name) if state == PAUSED else "vcluster up"
        )
        text = f"the node is {state}" + (f": {container.status}" if container.status else "")
        return replace(row, state=state, problem=text, fix=fix)
    handle = NodeHandle(connection, inventory.cluster)
    try:
        node = handle.state()
    except DockerError as error:
        return replace(row, state=DOCKER_ERROR, problem=error.detail, fix=error.hint or "")
    except (Unreachable, ConnectionLost, TimedOut):
        raise
    except HostError as error:  # it has ended since it was listed
        return replace(row, state=STOPPED, problem=error.detail, fix=error.hint or "vcluster up")
    except VclusterError as error:  # what it wrote about itself cannot be read
        return replace(row, state=UNKNOWN, problem=error.message, fix=error.hint or "")
    changed = last_change(handle) if role == "head" else None
    age = max(0.0, facts.clock - node.started)
    state = RUNNING if node.status else STARTING
    return replace(row, state=state, status=node.status, age=age, changed=changed, started=node.started)


def unseen(error: VclusterError) -> HostState:
    """A host that could not be looked at: it cannot be reached only where SSH did not get there."""
    away = isinstance(error, Unreachable | ConnectionLost)
    state = UNREACHABLE if away else DOCKER_ERROR if isinstance(error, DockerError) else UNKNOWN
    detail = error.detail if isinstance(error, HostError) else error.message
    return HostState(state, problem=detail, fix=error.hint or "")


def _away(inventory: Inventory, rows: Mapping[str, HostState]) -> dict[str, str]:
    """What is wrong with each host that the head's roll has not as here; empty where the head keeps none."""
    head = rows[inventory.head_name]
    addresses = {host.address: name for name, host in inventory.hosts.items()}
    found = absent(head.status.roll if head.status else None, addresses)
    witnessed = head.status is not None and head.status.group.witnessed
    return {
        name: _with_witness(why, rows[name], _counted(head, address) if witnessed else None)
        for address, name in addresses.items()
        if (why := found.get(name))
    }


def _with_witness(why: str, row: HostState, counted: int | None) -> str:
    """The words of the roll, of the node itself, and of Ray, which counts a host that is cut off for some time more."""
    roll = row.status.roll if row.status else None
    own = f" ({roll.error})" if roll and roll.error else ""
    return f"{why}{own}" + (f"; Ray counts {count(counted, 'GPU')}" if counted else "")


def _host(
    inventory: Inventory, name: str, row: HostState, head: HostState, expected: int | None, *, away: str
) -> HostStatus:
    address = inventory.hosts[name].address
    role = "head" if name == inventory.head_name else "worker"
    # Ray counts a node that has just ended for some more seconds.
    counted = 0 if row.state in (MISSING, STOPPED) else _counted(head, address)
    gpus = row.gpus if row.gpus is not None else inventory.hosts[name].gpu_number or expected
    problems, fix = [row.problem] if row.problem else [], row.fix
    group = row.status.group if row.status else None
    if group and (group.state != "up" or group.error):
        problems.append(f"{group.who} is {group.state}: {last_words(group)}".strip(": "))
        if group.state == "unknown":
            fix = fix or _restart_line(inventory, name)
        fix = fix or ("vcluster explain" if group.error else "")
    elif group and counted is not None and counted != gpus:
        who = "Ray" if head.status and head.status.group.witnessed else "the head"
        text = f"{who} reports {counted} of {gpus} GPUs" if head.status else f"the head's node is {head.state}"
        problem, way = _other_number(inventory, name, row, text, gpus)
        problems.append(problem)
        fix = fix or way
    elif row.state == STARTING:
        problems.append("the node has not reported yet")
    if away and row.state not in (MISSING, STOPPED, STARTING):
        problems.append(away)
        fix = fix or "vcluster check"
    if row.status and row.status.error:
        problems.append(row.status.error)
    if row.facts and (older := other_program(inventory.cluster, row.facts, program_digest())):
        problems.append(older)
        fix = fix or "vcluster up"
    problem = "; ".join(problems)
    return HostStatus(name, address, role, row.state, row.container, gpus, counted, problem, fix, row.age)


def _restart_line(inventory: Inventory, host: str) -> str:
    """What helps where a node program writes nothing: `check` names a full disk, a restart ends what stopped it."""
    restart = command_line("docker", "restart", node_name(inventory.cluster), on=host)
    return f"vcluster check\n{restart}\nthe restart loads a model again that is served there"


def _other_number(inventory: Inventory, name: str, row: HostState, text: str, gpus: int | None) -> tuple[str, str]:
    """The problem of a host of whose GPUs another number has joined, and its fix; `text` is who reports how many."""
    node = node_of(inventory.cluster, row.facts) if row.facts else None
    spec, address = stored_spec(node.labels) if node else None, inventory.hosts[name].address
    if spec and spec.address != address:
        # A wrong address is refused by `plan`, and by a right one the node is made again.
        return f"its node is at {spec.address}, and the inventory has {address}", "vcluster plan"
    if spec is None or gpus is None or spec.gpu_count <= gpus or spec.intent != intent(inventory.hosts[name]):
        return text, "vcluster up"
    # `up` keeps a node where less is found than when it was made: what was lost may come back.
    text = f"{count(gpus, 'GPU')} {'is' if gpus == 1 else 'are'} found, {spec.gpu_count} when its node was made"
    return text, f"repair the host, or set hosts.{name}.gpus: {gpus}\nvcluster up" if gpus else "repair the host"


def _former(
    inventory: Inventory, facts: Mapping[str, HostFacts], record: Record | None, head: HostState
) -> tuple[HostStatus, ...]:
    """The members that left the inventory and may still hold a node; what is there now was not looked at."""
    rows = []
    for name, member in former(inventory, facts, record).items():
        text = f"{OUTSIDE}: up removes its node (--former: where no inventory here named it); --forget: it is gone"
        lines = ("vcluster up", member.former_line, command_line("vcluster", "up", Option("--forget"), name))
        fix = "\n".join(filter(None, lines))
        counted = _counted(head, member.address)
        rows.append(HostStatus(name, member.address, "former", "left", "", None, counted, text, fix))
    return tuple(rows)


def _alive(head: NodeStatus | None) -> list[GroupNode]:
    return [node for node in head.group.nodes if node.alive] if head else []


def _counted(head: HostState, address: str) -> int | None:
    """The GPUs that Ray counts there: none where there is no head to count, unknown where it was not asked."""
    if head.status is None:
        return 0 if head.state in (MISSING, STOPPED) else None
    return int(sum(node.gpus for node in _alive(head.status) if node.address == address))


def _unknown(inventory: Inventory, head: NodeStatus | None, left: tuple[HostStatus, ...]) -> tuple[HostStatus, ...]:
    known = {host.address for host in inventory.hosts.values()} | {host.address for host in left}
    return tuple(
        HostStatus("?", node.address, UNKNOWN, "joined", "", None, int(node.gpus), OUTSIDE, "vcluster plan")
        for node in _alive(head)
        if node.address not in known
    )
