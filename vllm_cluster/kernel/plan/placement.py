"""Places a deployment on the hosts of a cluster, and again where these change; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from vllm_cluster.kernel.backends import BACKENDS, vllm
from vllm_cluster.kernel.backends.seam import Chosen, Degrees
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.shell_line import shell_line
from vllm_cluster.kernel.text import redact
from vllm_cluster.wire.order import (
    LOOPBACK,
    RENDEZVOUS,
    Deployment,
    Order,
    Placement,
    Replica,
    Taken,
    name_of,
    read_order,
    read_taken,
)
from vllm_cluster.wire.reading import RefusedDocument
from vllm_cluster.wire.status import BackendName


@dataclass(frozen=True)
class Cluster:
    """The hosts as they are now, by name, the head first: their GPUs, and their private addresses.

    `known` has the name of now by each name and address that a host had in the record of before. `backend` is what
    joins them, `rendezvous` where parts of a replica meet.
    """

    gpus: Mapping[str, int]
    addresses: Mapping[str, str]
    known: Mapping[str, str] = field(default_factory=dict)
    backend: BackendName = "ray"
    rendezvous: tuple[int, int] = RENDEZVOUS

    @classmethod
    def of(cls, inventory: Inventory, gpus: Mapping[str, int]) -> Cluster:
        """The hosts of an inventory, whose GPUs are by address."""
        names = {host.address: name for name, host in inventory.hosts.items()}
        by_name = {names[at]: count for at, count in gpus.items()}
        meet = inventory.ports.master, inventory.ports.data_parallel
        return cls(by_name, {names[at]: at for at in gpus}, {}, inventory.backend, meet)

    @property
    def head(self) -> str:
        """The host that runs the API server."""
        return next(iter(self.gpus))

    def name(self, word: str) -> str:
        """The name that a host has now, by a name or an address of now or before; the word itself where none has it."""
        names = {address: name for name, address in self.addresses.items()}
        return self.known.get(word) or names.get(word, word)

    def renamed(self, deployment: Deployment) -> Deployment:
        """The same deployment with the names that its hosts have now."""
        return replace(deployment, hosts=tuple(map(self.name, deployment.hosts)))


def available(deployment: Deployment, cluster: Cluster) -> dict[str, int]:
    """The GPUs that a deployment may take: those of the hosts that it names, or of all."""
    return {name: count for name, count in cluster.gpus.items() if not deployment.hosts or name in deployment.hosts}


def choose_backend(deployment: Deployment, cluster: Cluster) -> BackendName:
    """What makes one engine of a deployment's parts.

    Raises:
        UsageError: what is asked for is not there.
    """
    if cluster.backend == "mp" and deployment.backend not in ("", "mp"):
        fix = "leave out --backend ray, or set backend: ray in the inventory, then vcluster up"
        raise UsageError("this cluster has no Ray", hint=fix)
    return deployment.backend or ("mp" if deployment.dp > 1 else cluster.backend)


def choose_layout(deployment: Deployment, cluster: Cluster) -> vllm.Parallelism:
    """How a deployment is laid over the GPUs that it may take, and why.

    Raises:
        UsageError: they cannot be split so.
    """
    there, named = available(deployment, cluster), deployment.hosts
    where = ", ".join(there) if named else "the cluster"
    chosen = partial(vllm.choose_parallelism, list(there.values()), names=list(there), where=where)
    if deployment.dp > 1:
        layout = vllm.choose_engines(list(there.values()), deployment.tp, deployment.pp, deployment.dp, where=where)
    else:
        layout = chosen(deployment.tp, deployment.pp)
    reasons = list(layout.reasons)
    if deployment.expert_parallel:
        reasons.append(f"EP={layout.tp * deployment.dp}: each GPU of a stage holds whole experts (--ep)")
    if choose_backend(deployment, cluster) == "mp":
        asked = "--backend mp" if deployment.backend else "backend: mp" if cluster.backend == "mp" else "--dp"
        alone = len(cluster.gpus) == 1 and not deployment.backend
        why = "one host needs no Ray" if alone else f"without Ray ({asked})"
        reasons.append(f"vLLM's own processes join the GPUs: {why}")
    if named:
        idle = ", ".join(f"{count} of {name}" for name, count in cluster.gpus.items() if name not in there)
        reasons.append(f"--hosts {','.join(named)}: GPUs stay idle: {idle}")
    return replace(layout, reasons=tuple(reasons))


def place(
    deployment: Deployment,
    cluster: Cluster,
    layout: tuple[int, int],
    port: int,
    *,
    gpus: Mapping[str, int] | None = None,
    loading: tuple[str, ...] = (),
    offline: bool = False,
    before: Placement | None = None,
) -> Placement:
    """The replica of a deployment with this layout (TP, PP), and what its parts run.

    It takes the first GPUs that it may, but for `gpus` (host → number). What runs the same as `before` keeps its name.

    Raises:
        UsageError: the backend cannot lay it out so.
    """
    (tp, pp), named = layout, choose_backend(deployment, cluster)
    backend, degrees = BACKENDS[named], Degrees(tp, pp, deployment.dp, deployment.expert_parallel)
    taken = gpus if gpus is not None else backend.take(available(deployment, cluster), degrees)
    host = cluster.addresses[cluster.head] if deployment.expose else LOOPBACK
    argv = vllm.serve_argv(
        deployment.model,
        name=deployment.name,
        degrees=degrees,
        host=host,
        port=port,
        extra=deployment.flags,
        engine=backend.FLAGS,
    )
    env = vllm.environment() | (vllm.OFFLINE if offline else {})
    chosen = Chosen(cluster.head, taken, cluster.addresses, cluster.rendezvous)
    parts = backend.parts([*argv, *loading], env, chosen, degrees)
    replica = Replica(tp, pp, host, port, parts, loading, offline, deployment.dp, named, cluster.rendezvous)
    name = name_of(deployment, replica)
    same = before is not None and name == name_of(cluster.renamed(before.deployment), before.replica)
    return Placement(before.generation if before and same else name, deployment, replica)


def command(deployment: Deployment, names: Mapping[str, str], *, layout: bool = True, flag: str = "") -> str:
    """The command line that asks for a deployment, to paste, with a flag (--NAME=VALUE) of vLLM more.

    Without its layout where another one is to be chosen. `names` are those of the hosts by address, which format 1 had.
    """
    words = ["vcluster", "serve", deployment.model]
    words += ["--name", deployment.name] if deployment.name != deployment.model else []
    degrees = (("--tp", deployment.tp), ("--pp", deployment.pp), ("--dp", deployment.dp if deployment.dp > 1 else 0))
    for option, number in degrees:
        words += [option, str(number)] if layout and number else []
    words += ["--ep"] if deployment.expert_parallel else []
    words += ["--backend", deployment.backend] if deployment.backend else []
    if hosts := [names.get(host, host) for host in deployment.hosts]:
        words += ["--hosts", ",".join(hosts)]
    words += ["--expose"] if deployment.expose else []
    words += [] if deployment.rollback else ["--no-rollback"]
    # Of two equal flags the last one counts.
    flags = [*deployment.flags, *([flag] if flag else [])]
    return redact(shell_line([*words, *(["--", *flags] if flags else [])]))


def summary(placed: Placement, names: Mapping[str, str]) -> str:
    """A deployment in a line, for the history: what it asks for, and the layout that was chosen."""
    asked = command(placed.deployment, names, layout=False).removeprefix("vcluster serve ")
    return f"{asked} ({placed.replica.layout})"


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
    try:
        order = read_order(raw) if raw is not None else Order()
    except RefusedDocument:
        # The head still has what it took where a power cut broke the file.
        order = Order(known.number, deployments=(known.asked,) if known.asked else ())
    asked = order.wanted
    if asked is None:
        return None
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
    rows = [(one,) if one else () for one in (wanted, back_to)]
    return Followed(Order(order.epoch + 1, "", *rows).document, "; ".join(texts))


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
    return place(
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
    again = f"to serve it again: {command(still, {}, layout=False)}"
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
