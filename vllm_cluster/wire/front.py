"""What the head's node program and the front write for each other: where requests go, and how many are open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal

from vllm_cluster.wire.values import Address, Count, Line, Name, Number, Port, ServedName, between, inside

FORMAT = 1
# 64 deployments of 64 replicas, with the longest names that are in use, and with adapters.
MAX_ROUTES = 2 << 20
# `ready` gets requests. `draining` gets no new one, and its open ones end by themselves. `waiting` is not ready yet, or
# not now. `lost` has gone: what is open there is ended at once, as no end of its own may ever come.
ReplicaState = Literal["ready", "draining", "waiting", "lost"]


def _file(path: str) -> str:
    return "/" + inside(path.removeprefix("/"))


@dataclass(frozen=True)
class FrontReplica:
    """A replica's API, and the file of the key that it wants; none where it wants no key. `index` is its number."""

    id: Name
    host: Address
    port: Port
    state: ReplicaState
    key_file: Annotated[str, _file] | None = None
    index: Count = 0


@dataclass(frozen=True)
class FrontDeployment:
    """What clients ask for as `model`: its name, its replicas, and what it does while none of them is ready.

    `absent` are the numbers of those that have no API now, since none of their starts runs; `adapters` are the names
    beside its own that its flags give it.
    """

    name: ServedName
    replicas: tuple[FrontReplica, ...] = ()
    phase: Line = ""
    retry_after: Annotated[int, between(1, 86400)] = 5
    absent: tuple[Count, ...] = ()
    adapters: tuple[ServedName, ...] = ()


@dataclass(frozen=True)
class FrontRoutes:
    """Every deployment, the one that requests without a model go to first; each writing has the next `number`."""

    v: Literal[1]
    deployments: tuple[FrontDeployment, ...] = ()
    number: Count = 0

    def __post_init__(self) -> None:
        names = [one.name for one in self.deployments]
        ids = [replica.id for one in self.deployments for replica in one.replicas]
        if len({*names}) < len(names) or len({*ids}) < len(ids):
            raise ValueError("names a deployment or a replica twice")

    @cached_property
    def owners(self) -> Mapping[str, FrontDeployment]:
        """Whose each name is by the orders; what replicas list does not count."""
        adapters = {name: one for one in reversed(self.deployments) for name in one.adapters}
        return adapters | {one.name: one for one in self.deployments}


@dataclass(frozen=True)
class FrontCount:
    """Requests of one replica: open now, and since the front began; failed ones were not answered whole."""

    open: Count = 0
    requests: Count = 0
    failed: Count = 0


@dataclass(frozen=True)
class FrontStatus:
    """What the front has done since it began; `replicas` has those of the routes, and those with open requests.

    `routes` is the number of those in force; `error` is why the ones that were written last are not.
    """

    v: Literal[1]
    pid: Count
    updated: Number
    connections: Count = 0
    open: Count = 0
    requests: Count = 0
    by_status: Mapping[str, Count] = field(default_factory=dict)
    replicas: Mapping[Name, FrontCount] = field(default_factory=dict)
    error: Line = ""
    routes: Count = 0
