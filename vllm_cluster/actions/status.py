"""What the cluster is right now, host by host, whether all of it answers or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from vllm_cluster.core.desired import found_gpus
from vllm_cluster.core.errors import ShellUnusable, VclusterError
from vllm_cluster.core.facts import HostFacts
from vllm_cluster.core.identity import foreign, node_of, our_id
from vllm_cluster.core.members import former, record_of
from vllm_cluster.core.preflight import engine_problem
from vllm_cluster.core.spec import ROLE
from vllm_cluster.engine.status import NodeStatus, RayNode
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.barrier import look
from vllm_cluster.run.events import Emit, Event
from vllm_cluster.run.fleet import Fleet, Link
from vllm_cluster.run.observe import observe
from vllm_cluster.run.runtime import SYSTEM, Runtime
from vllm_cluster.text import count


@dataclass(frozen=True)
class HostStatus:
    """One host's row. `gpus` is what the host has, `counted` what Ray on the head counts there."""

    host: str
    address: str
    role: str
    state: str
    container: str
    gpus: int
    counted: int
    problem: str = ""


@dataclass(frozen=True)
class ClusterStatus:
    """The whole: up is true only when every node runs and Ray counts exactly the GPUs of all hosts."""

    cluster: str
    id: str | None
    up: bool
    hosts: tuple[HostStatus, ...]
    head: NodeStatus | None
    unreachable: tuple[str, ...]


@dataclass(frozen=True)
class _Row:
    state: str
    container: str
    role: str
    gpus: int
    status: NodeStatus | None
    problem: str = ""
    facts: HostFacts | None = None


def status(inventory: Inventory, emit: Emit, *, runtime: Runtime = SYSTEM) -> ClusterStatus:
    """Look at every host that answers; changes nothing."""
    with Fleet(inventory, runtime) as fleet:
        emit(Event("phase", f"looking at {count(len(inventory.hosts), 'host')}"))
        rows, failures = fleet.each(lambda link: _look(inventory, link))
    facts = {name: row.facts for name, row in rows.items() if row.facts}
    for other in foreign(inventory, facts):
        rows[other.host] = replace(rows[other.host], state="foreign", status=None, problem=other.text)
    head = rows[inventory.head_name].status if inventory.head_name in rows else None
    hosts = tuple(_host(inventory, name, rows.get(name), failures.get(name), head) for name in inventory.hosts)
    left = _former(inventory, facts, head)
    unknown = _unknown(inventory, head, left)
    up = (
        not unknown
        and not any(host.counted for host in left)
        and all(host.state == "running" and host.counted == host.gpus > 0 for host in hosts)
    )
    return ClusterStatus(inventory.cluster, our_id(inventory, facts), up, hosts + left + unknown, head, tuple(failures))


def ray_status(inventory: Inventory, emit: Emit) -> str:
    """What `ray status` prints on the head: a picture up to 5 s old, for people."""
    with Fleet(inventory) as fleet:
        _, failures = fleet.connect([inventory.head_name])
        for error in failures.values():
            raise error
        head = fleet.links[inventory.head_name]
        observe(inventory, head)
        argv = ["timeout", "30", "ray", "status"]
        return head.engine.exec(f"vcluster-{inventory.cluster}", argv, head.runtime.after(40)).output


def _look(inventory: Inventory, link: Link) -> _Row:
    # Connected here and not all at first: a host that hangs at its login holds up no other.
    try:
        link.connect()
        facts = observe(inventory, link)
    except ShellUnusable as error:
        return _Row("shell", "", "", 0, None, f"{error.detail}; {error.hint}")
    gpus = inventory.hosts[link.name].gpu_number or found_gpus(facts, inventory.accelerator)
    problem = engine_problem(facts)
    if problem:
        return _Row("docker", "", "", gpus, None, problem.text)
    container = node_of(inventory.cluster, facts)
    if container is None:
        return _Row("absent", "", "", gpus, None, "run vcluster up", facts)
    short, role = container.id[:12], container.labels.get(ROLE, "")
    if container.state != "running":
        return _Row(container.state, short, role, gpus, None, "run vcluster up", facts)
    try:
        node = look(link.engine, container.name).status
    except VclusterError as error:
        return _Row("ended", short, role, gpus, None, error.message, facts)
    return _Row("running", short, role, gpus, node, facts=facts)


def _host(
    inventory: Inventory, name: str, row: _Row | None, failure: VclusterError | None, head: NodeStatus | None
) -> HostStatus:
    address = inventory.hosts[name].address
    role = "head" if name == inventory.head_name else "worker"
    if row is None:
        return HostStatus(
            name, address, role, "unreachable", "", 0, _counted(head, address), failure.message if failure else ""
        )
    problems = [row.problem] if row.problem else []
    if row.status and (row.status.ray.state != "up" or row.status.ray.error):
        problems.append(f"Ray is {row.status.ray.state}: {row.status.ray.words}".strip(": "))
    if row.status and row.status.error:
        problems.append(row.status.error)
    problem = "; ".join(problems)
    return HostStatus(name, address, role, row.state, row.container, row.gpus, _counted(head, address), problem)


def _former(inventory: Inventory, facts: Mapping[str, HostFacts], head: NodeStatus | None) -> tuple[HostStatus, ...]:
    """The members that left the inventory and may still hold a node; what is there now was not looked at."""
    found = record_of(inventory, facts)
    return tuple(
        HostStatus(
            name,
            member.address,
            "former",
            "left",
            "",
            0,
            _counted(head, member.address),
            "not in the inventory: vcluster up removes its node",
        )
        for name, member in former(inventory, facts, found.record if found else None).items()
    )


def _alive(head: NodeStatus | None) -> list[RayNode]:
    return [node for node in head.ray.nodes if node.alive] if head else []


def _counted(head: NodeStatus | None, address: str) -> int:
    return int(sum(node.gpus for node in _alive(head) if node.address == address))


def _unknown(inventory: Inventory, head: NodeStatus | None, left: tuple[HostStatus, ...]) -> tuple[HostStatus, ...]:
    known = {host.address for host in inventory.hosts.values()} | {host.address for host in left}
    return tuple(
        HostStatus("?", node.address, "unknown", "in Ray", "", 0, int(node.gpus), "not in the inventory")
        for node in _alive(head)
        if node.address not in known
    )
