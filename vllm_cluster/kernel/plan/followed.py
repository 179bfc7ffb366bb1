"""What becomes of what is served where the hosts of a cluster change; pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from vllm_cluster.kernel.backends import vllm
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.plan.placement import Cluster, available, place_replica, serve_command, share_of
from vllm_cluster.kernel.plan.shares import Share
from vllm_cluster.wire.order import (
    Deployment,
    Order,
    Placement,
    Replica,
    Taken,
    read_order,
    read_taken,
)
from vllm_cluster.wire.reading import RefusedDocument


@dataclass(frozen=True)
class Followed:
    """An order after the cluster changed: its file, and what that means, for people."""

    content: bytes
    text: str


def follow(raw: bytes | None, cluster: Cluster, taken: bytes | None = None) -> Followed | None:
    """The order for a cluster that changed; `taken` is what its head knows of the order before.

    None where the order stays as it is. What does not fit any more gets the default layout if it had that, and else
    goes. Where the last order cannot be served, what is served in its place is what is wanted from now on; and what
    is to be served where an order that is being loaded cannot be, follows too: on hosts that have left it would wait
    without end.
    """
    known = _taken(taken)
    order = asked_last(raw, taken)
    asked = order.wanted
    if asked is None:
        return None
    if len(order.deployments) > 1 or asked.deployment.replicas > 1:
        return _follow_replicas(order, cluster)
    serve, spare = _in_force(asked, known, order.epoch)
    wanted, texts = _fit(serve, cluster)
    back_to, moved = _fit(spare, cluster) if spare else (None, [])
    if not (texts or moved):
        return None
    if wanted is None and back_to:
        wanted, back_to = back_to, None
        texts.append(f"{wanted.deployment.name} is served again")
    name = asked.deployment.name
    if serve is not asked:
        texts.append(f"{name}, which could not be served, is not wanted any more")
    elif not texts:
        texts.append(f"where {name} cannot be served: {'; '.join(moved)}")
    now, before = ((one,) if one else () for one in (wanted, back_to))
    return Followed(Order(order.epoch + 1, "", now, before).document, "; ".join(texts))


def _follow_replicas(order: Order, cluster: Cluster) -> Followed | None:
    """The replicas whose GPUs are still there, each where it is; one that lost a host goes, and the others serve on."""
    rows, texts = [], []
    for one in order.deployments:
        deployment, before = cluster.renamed(one.deployment), one.replica
        before_it = share_of(before)
        gpus = {cluster.name(host): number for host, number in before_it.gpus.items()}
        share = Share(gpus, {cluster.name(host): numbers for host, numbers in before_it.devices.items()})
        if gone := [host for host in gpus if not share.fits(host, cluster.gpus.get(host, 0))]:
            texts.append(f"{_called(one)} is not served any more: it was on {', '.join(gone)}")
            continue
        layout, make = (
            (before.tp, before.pp),
            partial(place_replica, loading=before.loading, offline=before.offline, before=one),
        )
        still = tuple(name for name in deployment.hosts if name in cluster.gpus)
        there = cluster.keeping(before.backend)
        moved = make(replace(deployment, hosts=still), there, layout, before.port, share=share, index=one.index)
        if moved.replica.parts != before.parts or moved.replica.host != before.host:
            where = ", ".join(part.host for part in moved.replica.parts if part.gpus)
            texts.append(f"{_called(one)} is served on {where}")
        rows.append(replace(moved, asked=one.asked))
    if not texts:
        return None
    try:
        now = Order(order.epoch + 1, "", tuple(rows))
    except ValueError as error:
        # An order that no vcluster writes: each of its rows is one, and they meet where they are placed again.
        now, texts = Order(order.epoch + 1), [f"nothing is served any more: the order {error}"]
    return Followed(now.document, "; ".join(texts))


def _called(placed: Placement) -> str:
    """A replica for people; the only one of a deployment by its name."""
    name = placed.deployment.name
    return name if placed.deployment.replicas == 1 else f"replica {placed.index} of {name}"


def asked_last(raw: bytes | None, taken: bytes | None) -> Order:
    """What was asked for last; where that cannot be read, what the head took."""
    try:
        return read_order(raw) if raw is not None else Order()
    except RefusedDocument:
        # The head still has what it took where a power cut broke the file.
        known = _taken(taken)
        return Order(known.number, deployments=(known.asked,) if known.asked else ())


def carried(taken: bytes | None) -> Taken:
    """What a head knows of its order, for the host that becomes the head: nothing is ready there yet."""
    known = _taken(taken)
    return Taken() if known.ready and not known.failed else replace(known, ready=False)


def _taken(raw: bytes | None) -> Taken:
    """What was taken; nothing where it cannot be read: whoever may use the head's Docker can write there."""
    try:
        return read_taken(raw or b"{}")
    except RefusedDocument:
        return Taken()


def _in_force(asked: Placement, taken: Taken, epoch: int) -> tuple[Placement, Placement | None]:
    """What the head serves, or shall; and what it goes back to where that cannot be, None where it would not."""
    if taken.number == epoch:
        if taken.failed and taken.back_to:
            return taken.back_to, None
        spare = None if taken.ready else taken.back_to
    else:
        # The head has not taken this order yet: it goes back to what is ready.
        spare = taken.asked if taken.ready and not taken.failed else taken.back_to
    if not asked.deployment.rollback or (spare and spare.generation == asked.generation):
        spare = None
    return asked, spare


def _fit(placed: Placement, cluster: Cluster) -> tuple[Placement | None, list[str]]:
    """A placement as it fits, None where it does not; with what has changed of it, for people."""
    try:
        now = fitted(placed, cluster)
    except UsageError as error:
        return None, [f"{placed.deployment.name} is not served any more: {error.message}"]
    texts = list(_differences(placed, now, cluster))
    return (now, texts) if texts else (placed, [])


def fitted(placed: Placement, cluster: Cluster) -> Placement:
    """What was placed on hosts as they were, for the hosts as they are; it keeps its GPUs where they are still there.

    Raises:
        UsageError: it does not fit any more.
    """
    deployment, before = cluster.renamed(placed.deployment), placed.replica
    tp, pp = _sizes(deployment, before, cluster)
    gpus: dict[str, int] | None = {cluster.name(part.host): part.gpus for part in before.parts if part.gpus}
    held = all(cluster.gpus.get(host, 0) >= count for host, count in (gpus or {}).items())
    if (tp, pp) != (before.tp, before.pp) or not held or sum((gpus or {}).values()) != before.size:
        gpus = None
    return place_replica(
        deployment,
        cluster,
        (tp, pp),
        before.port,
        gpus=gpus,
        loading=before.loading,
        offline=before.offline,
        before=placed,
    )


def _sizes(deployment: Deployment, before: Replica, cluster: Cluster) -> tuple[int, int]:
    """The layout over the GPUs that are there now.

    Raises:
        UsageError: there are too few, and a person asked for this layout; or for a host that has left.
    """
    there = available(deployment, cluster)
    still = replace(deployment, hosts=tuple(name for name in deployment.hosts if name in there))
    again = f"to serve it again: {serve_command(still, {}, layout=False)}"
    if left := [name for name in deployment.hosts if name not in there]:
        raise UsageError(f"{', '.join(left)} of --hosts {','.join(deployment.hosts)} has left; {again}")
    tp, pp, total = before.tp, before.pp, sum(there.values())
    if before.size <= total:
        return tp, pp
    if deployment.tp or deployment.pp or before.dp > 1:
        raise UsageError(f"{before.layout} needs {before.size} GPUs, and there are {total}; {again}")
    chosen = vllm.choose_parallelism(list(there.values()), None, None)
    return chosen.tp, chosen.pp


def _differences(placed: Placement, now: Placement, cluster: Cluster) -> Iterator[str]:
    """What has changed of a replica, for people."""
    name, before, after = now.deployment.name, placed.replica, now.replica
    if after.host != before.host:
        yield f"{name} is served at {after.host}"
    if (after.tp, after.pp) != (before.tp, before.pp):
        # Another layout has other ranks anyway, and they name their hosts.
        yield f"{name} is served with {after.layout}, before {before.layout}"
        return
    # Format 1 had the address of a host in place of its name.
    called = cluster.name if before.leader.host == before.leader.address else str
    then = [(called(part.host), part.address) for part in before.parts if part.gpus]
    there = [(part.host, part.address) for part in after.parts if part.gpus]
    hosts = [",".join(map(called, placed.deployment.hosts)), ",".join(now.deployment.hosts)]
    if sorted(then) != sorted(there):
        # By their addresses where the hosts are the same ones.
        what = int({host for host, _ in then} == {host for host, _ in there})
        was, runs = (", ".join(row[what] for row in rows) for rows in (then, there))
        yield f"{name} is served on {runs}, before on {was}"
    elif hosts[0] != hosts[1]:
        yield f"{name} is wanted on {hosts[1]}, before on {hosts[0]}"
    elif after.leader.host != called(before.leader.host):
        yield f"{name} is served by {after.leader.host}"
