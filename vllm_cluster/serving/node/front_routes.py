"""Where the front sends a request: by model, by the prompt's beginning, to the replica with the fewest open. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from vllm_cluster.wire.front import FrontDeployment, FrontReplica, FrontRoutes
from vllm_cluster.wire.reading import json_for_all

# A prompt's own replica is passed over once it has this much more to do than the one that has least.
MUCH_MORE, MORE = 1.5, 8
# After a failure to connect, a replica gets no request for so long, then twice that, and so on.
AWAY_SECONDS, MAX_AWAY_SECONDS = 0.5, 4.0


@dataclass
class ReplicaLoad:
    """What one replica has to do: requests open now and so far, and for how long it gets none after a failure."""

    open: int = 0
    requests: int = 0
    failed: int = 0
    failures: int = 0
    away_until: float = 0.0

    def fail(self, now: float) -> None:
        """Count a failure to connect."""
        pause = AWAY_SECONDS * 2.0 ** min(self.failures, 8)
        self.failures, self.away_until = self.failures + 1, now + min(pause, MAX_AWAY_SECONDS)

    def succeed(self) -> None:
        """Count an answer: it is well."""
        self.failures, self.away_until = 0, 0.0


@dataclass
class Table:
    """The routes in force, and the load of each replica by its id."""

    routes: FrontRoutes
    loads: dict[str, ReplicaLoad] = field(default_factory=dict)
    # Of each deployment: other models that its replicas list, as adapters, and when they were asked.
    listed: dict[str, frozenset[str]] = field(default_factory=dict)
    # All names, once they were asked for: to sort what replicas list takes 50 ms at 70,000.
    _names: list[str] | None = None

    def replace(self, routes: FrontRoutes) -> None:
        """Take new routes; what is counted stays for replicas that are in them, or have open requests."""
        self.routes, self._names = routes, None
        ids = {replica.id for one in routes.deployments for replica in one.replicas}
        self.loads = {name: load for name, load in self.loads.items() if name in ids or load.open}
        names = {one.name for one in routes.deployments}
        self.listed = {name: models for name, models in self.listed.items() if name in names}

    def load(self, replica: FrontReplica) -> ReplicaLoad:
        """The load of a replica."""
        return self.loads.setdefault(replica.id, ReplicaLoad())

    def deployment(self, model: str | None) -> FrontDeployment | None:
        """The deployment that a model's name is for; the first where none is named; None where it is unknown."""
        found = self.routes.deployments
        if model is None:
            return found[0] if found else None
        listing = (one for one in found if model in self.listed.get(one.name, ()))
        return self.routes.owners.get(model) or next(listing, None)

    def names(self) -> Sequence[str]:
        """Every model that is known."""
        if self._names is None:
            found = [one.name for one in self.routes.deployments]
            self._names = [*found, *sorted(set().union(*self.listed.values()) - {*found})]
        return self._names

    def learn(self, deployment: str, models: Iterable[str]) -> None:
        """Keep what a replica of a deployment lists."""
        self.listed[deployment], self._names = frozenset(models), None

    def choose(
        self, deployment: FrontDeployment, prefix: bytes, now: float, avoid: Collection[str] = ()
    ) -> FrontReplica | None:
        """The replica for a request; None while none is ready. One that failed just now comes after all others."""
        ready = [one for one in deployment.replicas if one.state == "ready"]
        best = [one for one in ready if one.id not in avoid and self.load(one).away_until <= now]
        candidates = best or [one for one in ready if one.id not in avoid] or ready
        if not candidates:
            return None
        least = min(candidates, key=lambda one: (self.load(one).open, self.load(one).requests))
        if not prefix:
            return least
        own = max(candidates, key=lambda one: _weight(one.id, prefix))
        fewest = self.load(least).open
        return least if self.load(own).open > fewest * MUCH_MORE + MORE else own

    def others(self, replica: FrontReplica, tried: Collection[str]) -> bool:
        """Whether another replica of the same deployment is ready that was not tried."""
        found = (one.replicas for one in self.routes.deployments if replica.id in {r.id for r in one.replicas})
        return any(one.state == "ready" and one.id not in tried for ones in found for one in ones)

    @property
    def indexes(self) -> set[int]:
        """The number of each replica, also of those that have no API now."""
        found = self.routes.deployments
        return {index for one in found for index in (*one.absent, *(replica.index for replica in one.replicas))}

    @property
    def ready(self) -> bool:
        """Whether any replica is."""
        return any(replica.state == "ready" for one in self.routes.deployments for replica in one.replicas)


def _weight(replica: str, prefix: bytes) -> bytes:
    """The highest of these weights is a prompt's own replica: it stays the same when others come and go."""
    return hashlib.blake2b(replica.encode() + b"\0" + prefix, digest_size=8).digest()


def merge_model_lists(routes: FrontRoutes, lists: Callable[[str], Sequence[Mapping[str, object]] | None]) -> bytes:
    """/v1/models of all deployments: what a replica of each lists of its own, the deployments in their order."""
    rows: dict[object, Mapping[str, object]] = {}
    for one in routes.deployments:
        for row in lists(one.name) or ():
            if routes.owners.get(str(row["id"]), one) is one:
                rows.setdefault(row["id"], row)
    return json.dumps({"object": "list", "data": [*rows.values()]}).encode()


def model_rows(answer: bytes) -> list[dict[str, object]] | None:
    """The rows of a replica's own list of models; None where it has another shape, or would spoil the list of all."""
    try:
        rows = json_for_all(answer)["data"]  # type: ignore[index]
        good = isinstance(rows, list) and all(isinstance(row["id"], str) for row in rows)
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return rows if good else None
