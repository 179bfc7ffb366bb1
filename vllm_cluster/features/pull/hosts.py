"""The hosts of a pull: connected, looked at, and the containers that pulls have there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from vllm_cluster.kernel.assess import facts_of
from vllm_cluster.kernel.errors import Locked, PreflightFailed
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.hosts.reach import connect_all
from vllm_cluster.kernel.hosts.runtime import Runtime
from vllm_cluster.kernel.images.supply import may_change
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.models import weights
from vllm_cluster.kernel.models.cache import ask_cache
from vllm_cluster.kernel.plan.identity import authority
from vllm_cluster.kernel.plan.pull import container_name
from vllm_cluster.kernel.text import count
from vllm_cluster.wire.pull import CacheRow

T = TypeVar("T")
See = Callable[[CacheRow], None]
_IGNORE: See = lambda _row: None  # noqa: E731


@dataclass(frozen=True)
class PullHosts:
    """All hosts, connected and looked at."""

    inventory: Inventory
    fleet: Fleet
    facts: Mapping[str, HostFacts]
    emit: Emit

    def ask(self, connection: HostConnection, asked: Mapping[str, object], kind: type[T], see: See = _IGNORE) -> T:
        """Ask the program beside one cache; `see` gets the lines before the last one."""
        return ask_cache(connection, self.inventory, self.facts[connection.name], asked, kind, see=see)


@contextmanager
def looked_at(inventory: Inventory, emit: Emit, runtime: Runtime) -> Iterator[PullHosts]:
    """Connect to every host and look at it; temporary containers may be made.

    Raises:
        Unreachable, FleetError, PreflightFailed: a host cannot be used; none was touched.
    """
    with connect_all(inventory, emit, runtime=runtime) as fleet:
        emit(Event("phase", f"inspecting {count(len(inventory.hosts), 'host')}"))
        with on_hosts(inventory, fleet, facts_of(inventory, fleet), emit) as hosts:
            yield hosts


@contextmanager
def on_hosts(inventory: Inventory, fleet: Fleet, facts: Mapping[str, HostFacts], emit: Emit) -> Iterator[PullHosts]:
    """The hosts of a verb that has looked at them.

    Raises:
        PreflightFailed: another cluster of this name pulls.
    """
    _refuse_foreign(inventory, facts)
    with ExitStack() as allowed:
        # Without the lease, which lasts as long as the laptop is there: Docker refuses a second pull on a host.
        for name in inventory.hosts:
            allowed.enter_context(may_change(fleet.connections[name]))
        yield PullHosts(inventory, fleet, facts, emit)


def _refuse_foreign(inventory: Inventory, facts: Mapping[str, HostFacts]) -> None:
    """Refuse while another cluster of this name pulls: the containers would have one name."""
    name, mine = container_name(inventory.cluster), authority(inventory, facts)
    for host, seen in facts.items():
        found = next((one for one in (*seen.containers, *seen.other_containers) if one.name == name), None)
        if found and not mine.owns(found.labels):
            text = f"{host}: pull: {name} belongs to another cluster, {inventory.cluster}"
            raise PreflightFailed(text, hint="wait for its pull, or set another cluster: in the inventory")


def statuses(hosts: PullHosts) -> dict[str, weights.PullStatus]:
    """The pull's containers that there are, by host."""
    found = hosts.fleet.all(lambda connection: weights.status(connection, hosts.inventory.cluster))
    return {name: one for name, one in found.items() if one.phase != "gone"}


def remove_pull(hosts: PullHosts, names: Sequence[str] | Mapping[str, object], made_by: str = "") -> None:
    """Remove the pull's containers of these hosts, or only those of the pull `made_by`."""
    if names:
        hosts.fleet.all(
            lambda connection: weights.remove_pull_container(connection, hosts.inventory.cluster, made_by), list(names)
        )


def refuse_running(hosts: PullHosts) -> None:
    """Refuse while a pull runs; what an earlier one left is removed.

    Raises:
        Locked: one runs.
    """
    there = statuses(hosts)
    if running := [name for name, one in there.items() if not one.over]:
        one = next((one for one in there.values() if one.model), None)
        hint = one.follow if one else "vcluster pull --cancel"
        raise Locked(f"{one.model if one else 'a model'} is being pulled to {', '.join(running)}", hint=hint)
    remove_pull(hosts, there)
