"""Which models lie in the caches of the hosts."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vllm_cluster.features.pull.hosts import PullHosts
from vllm_cluster.kernel.assess import each_usable
from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.hosts.connection import Fleet
from vllm_cluster.kernel.hosts.reach import reached
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.inventory.words import nearest
from vllm_cluster.kernel.models.host_cache import cached
from vllm_cluster.kernel.models.listed import CachedModel
from vllm_cluster.kernel.models.weights import status
from vllm_cluster.kernel.plan.cached_model import REPOSITORY, agreed, model_names
from vllm_cluster.kernel.plan.pull import container_name
from vllm_cluster.kernel.text import count


@dataclass(frozen=True)
class RunningPull:
    """What a host gets now; `phase` is downloading, copying or receiving; serving once it has all."""

    model: str
    commit: str
    phase: str
    pulled_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class CachedModels:
    """The models of each host that answered, and why the others did not; `pulls` are those under way, by host."""

    hosts: Mapping[str, tuple[CachedModel, ...]]
    failures: Mapping[str, VclusterError]
    pulls: Mapping[str, RunningPull] = field(default_factory=dict)


def models(inventory: Inventory, emit: Emit, *, runtime: Runtime = SYSTEM) -> CachedModels:
    """List the models in the cache of every host. Changes nothing.

    Raises:
        Unreachable, FleetError: no host can be reached.
    """
    with reached(inventory, emit, runtime=runtime) as (fleet, failures):
        there = [name for name in fleet.names if name not in failures]
        emit(Event("phase", f"reading the model caches of {count(len(there), 'host')}"))
        found, more = fleet.each(lambda connection: cached(inventory, connection), there)
        return CachedModels(found, {**failures, **more}, running_pulls(inventory, fleet, list(found)))


def running_pulls(inventory: Inventory, fleet: Fleet, hosts: Sequence[str]) -> dict[str, RunningPull]:
    """What is being pulled; where Docker does not answer that is not known, and the cache was read all the same."""
    facts, _ = each_usable(inventory, fleet, hosts)
    name = container_name(inventory.cluster)
    there = [host for host, seen in facts.items() if any(one.name == name for one in seen.containers)]
    found, _ = fleet.each(lambda connection: status(connection, inventory.cluster), there)
    return {
        host: RunningPull(one.model, one.commit, one.phase, one.bytes, one.total)
        for host, one in found.items()
        if one.model and not one.over
    }


def near_cached(hosts: PullHosts, model: str, names: Sequence[str] | None = None) -> str | None:
    """The model in the caches of these hosts whose name is spelt nearly so; None where there is none.

    Without hosts it is for a remedy: a repository that the head has, or several of all hosts. What ./NAME is of the
    hosts, a pull would take from this machine.

    Raises:
        HostError, FleetError: a cache cannot be read.
    """
    found = hosts.fleet.all(lambda connection: cached(hosts.inventory, connection), names)
    listed = {host: tuple(one.name for one in rows) for host, rows in found.items()}
    there = model_names(itertools.chain(*listed.values()))
    pulled = [one for one in agreed(listed, hosts.inventory.head_name) if REPOSITORY.fullmatch(one)]
    return None if model in there else nearest(model, pulled if names is None else there)
