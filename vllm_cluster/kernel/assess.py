"""The beginning of a verb, once its hosts are connected: observe, judge, compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllm_cluster.kernel.apply.members import look_at_members
from vllm_cluster.kernel.apply.two_heads import require_one_head
from vllm_cluster.kernel.checks.docker import engine_problem
from vllm_cluster.kernel.checks.finding import ensure_no_errors, merged
from vllm_cluster.kernel.checks.registry import preflight
from vllm_cluster.kernel.errors import InventoryError, UsageError, VclusterError
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import Fleet
from vllm_cluster.kernel.hosts.observe import observe, usable
from vllm_cluster.kernel.hosts.secrets import KeptSecret, Secrets, collect_secrets, collect_with_values
from vllm_cluster.kernel.images.host_images import with_contents
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.inventory.words import nearest
from vllm_cluster.kernel.node.program import program_digest
from vllm_cluster.kernel.node.secret_files import read_kept
from vllm_cluster.kernel.plan.desired import Inputs, desired, settled
from vllm_cluster.kernel.plan.diff import diff
from vllm_cluster.kernel.plan.gpus import chosen
from vllm_cluster.kernel.plan.identity import decide_cluster_id, node_of
from vllm_cluster.kernel.plan.kept import find_holders, kept_secrets
from vllm_cluster.kernel.plan.members import NONE_NAMED, Named
from vllm_cluster.kernel.plan.plan import Plan
from vllm_cluster.kernel.plan.spec import ContainerSpec
from vllm_cluster.kernel.text import count

# This machine, where a host is named.
LOCAL = "local"
# Of the id that a new cluster gets.
ID_BYTES = 8


@dataclass(frozen=True)
class Assessment:
    """What was found, what is wanted, and the way from one to the other."""

    facts: Mapping[str, HostFacts]
    plan: Plan
    secrets: Secrets


def each_usable(
    inventory: Inventory, fleet: Fleet, hosts: Sequence[str]
) -> tuple[dict[str, HostFacts], dict[str, VclusterError]]:
    """The facts of those of these hosts whose Docker can be used, and why the others' cannot."""
    return fleet.each(lambda connection: usable(observe(inventory, connection)), hosts)


def facts_of(inventory: Inventory, fleet: Fleet) -> dict[str, HostFacts]:
    """The facts of every host.

    Raises:
        PreflightFailed: a host's Docker cannot be used.
    """
    facts = fleet.all(lambda connection: observe(inventory, connection))
    ensure_no_errors([finding for host in facts.values() if (finding := engine_problem(host))])
    return with_contents(inventory, fleet, facts)


def assess(
    inventory: Inventory,
    fleet: Fleet,
    emit: Emit,
    *,
    locked: bool = False,
    read: bool = True,
    named: Named = NONE_NAMED,
) -> Assessment:
    """Observe all hosts and compare them with the inventory; changes nothing.

    Without `read` secrets by reference count as unchanged. With the lease held it also reads the generated secrets from
    where they are, to give them to new nodes.
    Members that left and are not clean are remembered, but for those to forget.

    Raises:
        PreflightFailed: a check found an error; nothing was touched.
        UsageError: a host that is named has not left.
    """
    emit(Event("phase", f"inspecting {count(len(inventory.hosts), 'host')}"))
    facts = facts_of(inventory, fleet)
    judge(inventory, facts, emit)
    return compare_hosts(inventory, fleet, facts, emit, locked=locked, read=read, named=named)


def compare_hosts(
    inventory: Inventory,
    fleet: Fleet,
    facts: Mapping[str, HostFacts],
    emit: Emit,
    *,
    locked: bool = False,
    read: bool = True,
    named: Named = NONE_NAMED,
) -> Assessment:
    """The way from what was found to what is wanted; as `assess`.

    Raises:
        UsageError: a host that is named has not left.
        PreflightFailed: two hosts have what a head has, and each has another key or another order.
    """
    if locked:
        require_one_head(inventory, facts, fleet)
        secrets = collect_with_values(inventory, _read(inventory, facts, fleet), fleet.runtime)
    else:
        secrets = collect_secrets(inventory, kept_secrets(inventory, facts), fleet.runtime, read=read)
    note_gpus(inventory, facts, emit)
    specs = _specs(inventory, fleet, facts, secrets, emit)
    members = look_at_members(inventory, fleet, facts, specs, emit=emit, named=named, locked=locked)
    return Assessment({**facts, **members.former}, diff(specs, facts, members), secrets)


def _read(inventory: Inventory, facts: Mapping[str, HostFacts], fleet: Fleet) -> dict[str, KeptSecret]:
    return read_kept(inventory.cluster, find_holders(inventory, facts), facts, fleet)


def judge(inventory: Inventory, facts: Mapping[str, HostFacts], emit: Emit) -> None:
    """Check the hosts; warn of what may be wrong.

    Raises:
        PreflightFailed: a check found an error.
    """
    findings = preflight(inventory, facts)
    for one in merged(finding for finding in findings if not finding.error):
        emit(Event("warning", f"{one.message}; {one.fix}", one.host, {"code": one.code}))
    ensure_no_errors([finding for finding in findings if finding.error])


def _specs(
    inventory: Inventory, fleet: Fleet, facts: Mapping[str, HostFacts], secrets: Secrets, emit: Emit
) -> tuple[ContainerSpec, ...]:
    identity = decide_cluster_id(inventory, facts) or fleet.runtime.token(ID_BYTES)
    specs, less = settled(desired(inventory, facts, Inputs(program_digest(), secrets.ids, identity)), facts)
    for lost in less:
        emit(Event("warning", f"{lost.text}; the node stays as it is", lost.host, {"code": "found-less"}))
    return specs


def note_gpus(inventory: Inventory, facts: Mapping[str, HostFacts], emit: Emit) -> None:
    """Show which GPUs are chosen, where the inventory gives a number; a node that runs keeps those it has."""
    if inventory.accelerator != "nvidia":
        return
    for name, seen in facts.items():
        node, gpus = node_of(inventory.cluster, seen), chosen(inventory.hosts[name], seen)
        given = isinstance(inventory.hosts[name].gpus, int) and len(gpus) < len(seen.gpus)
        if given and (node is None or node.state != "running"):
            names = ", ".join(str(gpu.index) for gpu in gpus)
            emit(Event("note", f"GPU {names} of {len(seen.gpus)} are chosen", name))


def is_other_local(inventory: Inventory) -> bool:
    """Whether a host is named as this machine is, and is not this machine."""
    host = inventory.hosts.get(LOCAL)
    return host is not None and host.destination != LOCAL


def require_one_local(inventory: Inventory, option: str) -> None:
    """Refuse an option's `local` where it names this machine and another one.

    Raises:
        UsageError: it does.
    """
    if is_other_local(inventory):
        text = f"{option} local: names this machine, and the host at {inventory.hosts[LOCAL].destination}"
        raise UsageError(text, hint="rename hosts.local in the inventory, then vcluster up")


def require_name(inventory: Inventory, names: list[str]) -> None:
    """Refuse hosts that the inventory does not have."""
    unknown = [name for name in names if name not in inventory.hosts]
    if unknown:
        there = tuple(inventory.hosts)
        text = f"no host {', '.join(unknown)}: there are {', '.join(there)}"
        near = {name: found for name in unknown if (found := nearest(name, there))}
        if len(near) < len(unknown):
            raise InventoryError(text, hint="vcluster status")
        raise InventoryError(text, instead=near)
