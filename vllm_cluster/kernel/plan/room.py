"""Finds room for a deployment among others: beside them, or in place of those that are in its way; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from vllm_cluster.kernel.backends import BACKENDS
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.plan.placement import Cluster, available
from vllm_cluster.kernel.shell_line import command_line
from vllm_cluster.wire.order import Deployment, Order, Placement


@dataclass(frozen=True)
class Room:
    """The cluster as a deployment may use it: what of the order `stays`, and what `goes` for it.

    `own` are its replicas until now, or, where it has none, those in whose place it comes. `why` is why something goes.
    """

    cluster: Cluster
    stays: tuple[Placement, ...] = ()
    goes: tuple[str, ...] = ()
    own: tuple[Placement, ...] = ()
    why: str = ""


def rooms(deployment: Deployment, cluster: Cluster, order: Order, port: int) -> Iterator[Room]:
    """Every room for a deployment, that where the least goes first.

    Raises:
        UsageError: its clients would be reached where those of the others are not.
    """
    others, own = order.beside(deployment.name), order.named(deployment.name)
    if not others:
        yield _room(deployment, cluster, (), (), own)
        return
    beside = _room(deployment, cluster, others, (), own)
    if available(deployment, beside.cluster):
        ensure_one_address(deployment, port, others)
        yield beside
    there = {cluster.addresses[name] for name in deployment.hosts}
    in_the_way = {one.deployment.name for one in others if there & one.replica.ranks.keys()} or {*order.names}
    goes = tuple(name for name in order.names if name in in_the_way and name != deployment.name)
    stays = tuple(one for one in others if one.deployment.name not in goes)
    ensure_one_address(deployment, port, stays)
    own = own or tuple(one for one in others if one not in stays)
    yield replace(_room(deployment, cluster, stays, goes, own), why=_free(deployment, beside.cluster))


def _free(deployment: Deployment, cluster: Cluster) -> str:
    """What is free for a deployment beside others, which is too little."""
    named = deployment.hosts or tuple(cluster.gpus)
    left = {name: cluster.gpus[name] - len(cluster.taken.get(name, ())) for name in named}
    if not any(left.values()):
        return f"no GPU of {' and '.join(named)} is free" if deployment.hosts else "no GPU is free"
    return "it needs more GPUs than are free, " + ", ".join(f"{number} of {name}" for name, number in left.items())


def _room(
    deployment: Deployment,
    cluster: Cluster,
    stays: tuple[Placement, ...],
    goes: tuple[str, ...],
    own: tuple[Placement, ...],
) -> Room:
    same = [one for one in own if one.deployment.name == deployment.name]
    # What runs beside others, or as several, keeps what joins its parts: else the same would not be the same.
    if same and (stays or len(same) > 1):
        cluster = cluster.keeping(same[0].replica.backend)
    return Room(beside(cluster, stays), stays, goes, own)


def beside(cluster: Cluster, others: tuple[Placement, ...]) -> Cluster:
    """The cluster for one more deployment."""
    return replace(cluster, taken=_taken(others, cluster))


def _taken(placed: tuple[Placement, ...], cluster: Cluster) -> Mapping[str, frozenset[int]]:
    """The numbers of the GPUs that these have, by host; all of one where it is not known which."""
    found: dict[str, frozenset[int]] = {}
    for one in placed:
        for part in one.replica.parts:
            host = cluster.name(part.address)
            every = frozenset(range(cluster.gpus.get(host, 0)))
            if part.gpus and host in cluster.gpus:
                numbers = part.devices or (every if BACKENDS[one.replica.backend].LED_BY_HEAD else range(part.gpus))
                found[host] = found.get(host, frozenset()) | (every & frozenset(numbers))
    return found


def ensure_one_address(deployment: Deployment, port: int, others: tuple[Placement, ...]) -> None:
    """Refuse what clients would not reach where they reach the others: one port has all models.

    Raises:
        UsageError: with what to do.
    """
    if not others:
        return
    first = others[0]
    stop = command_line("vcluster", "stop", first.deployment.name)
    if first.replica.port != port:
        text = f"{first.deployment.name} answers at port {first.replica.port}, and ports.api is {port} now"
        raise UsageError(f"{text}: all models answer at one address", hint=stop)
    if deployment.expose and not first.deployment.expose:
        text = f"{first.deployment.name} is not exposed, and all models answer at one address"
        raise UsageError(text, hint=f"leave out --expose, or first:\n{stop}")
    if first.deployment.expose and not deployment.expose:
        text = f"{first.deployment.name} is exposed, and all models answer at one address"
        raise UsageError(text, hint=f"serve {deployment.name} with --expose, too")
