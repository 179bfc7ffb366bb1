"""Places a deployment on the hosts of a cluster; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from vllm_cluster.kernel.backends import BACKENDS, vllm
from vllm_cluster.kernel.backends.seam import Chosen, Degrees
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.shares import Share, deal, replica_sizes
from vllm_cluster.kernel.shell_line import shell_line
from vllm_cluster.kernel.text import redact
from vllm_cluster.wire.order import (
    LOOPBACK,
    RENDEZVOUS,
    Deployment,
    Order,
    Placement,
    Replica,
    name_of,
)
from vllm_cluster.wire.status import BackendName


@dataclass(frozen=True)
class Cluster:
    """The hosts as they are now, by name, the head first: their GPUs, and their private addresses.

    `known` has the name of now by each name and address that a host had in the record of before. `backend` is what
    joins them, `rendezvous` where parts of a replica meet; `replicas` is the first port of those that others lead.
    """

    gpus: Mapping[str, int]
    addresses: Mapping[str, str]
    known: Mapping[str, str] = field(default_factory=dict)
    backend: BackendName = "ray"
    rendezvous: tuple[int, int] = RENDEZVOUS
    replicas: int = 8100

    @classmethod
    def of(cls, inventory: Inventory, gpus: Mapping[str, int]) -> Cluster:
        """The hosts of an inventory, whose GPUs are by address."""
        names = {host.address: name for name, host in inventory.hosts.items()}
        by_name = {names[at]: count for at, count in gpus.items()}
        ports = inventory.ports
        meet, addresses = (ports.master, ports.data_parallel), {names[at]: at for at in gpus}
        return cls(by_name, addresses, {}, inventory.backend, meet, ports.replicas)

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
    if deployment.replicas > 1 and deployment.backend not in ("", "mp"):
        # vLLM asks Ray for GPUs anywhere: two of its engines take each other's.
        raise UsageError("vcluster runs several replicas without Ray", hint="leave out --backend ray")
    return deployment.backend or ("mp" if deployment.dp > 1 or deployment.replicas > 1 else cluster.backend)


def _why_mp(deployment: Deployment, cluster: Cluster) -> str:
    """What chose mp, as the plan names it."""
    if deployment.backend:
        return "without Ray (--backend mp)"
    if len(cluster.gpus) == 1:
        return "one host needs no Ray"
    if cluster.backend == "mp":
        return "without Ray (backend: mp)"
    return "without Ray (--replicas)" if deployment.replicas > 1 else "without Ray (--dp)"


def choose_layout(deployment: Deployment, cluster: Cluster) -> vllm.Parallelism:
    """How a deployment is laid over the GPUs that it may take, and why.

    Raises:
        UsageError: they cannot be split so.
    """
    there, named = available(deployment, cluster), deployment.hosts
    where = ", ".join(there) if named else "the cluster"
    chosen = partial(vllm.choose_parallelism, list(there.values()), names=list(there), where=where)
    if deployment.replicas > 1:
        tp, pp, why = replica_sizes(there, deployment.tp, deployment.pp, deployment.dp, deployment.replicas)
        layout = vllm.Parallelism(tp, pp, (why,))
    elif deployment.dp > 1:
        layout = vllm.choose_engines(list(there.values()), deployment.tp, deployment.pp, deployment.dp, where=where)
    else:
        layout = chosen(deployment.tp, deployment.pp)
    reasons = list(layout.reasons)
    if deployment.expert_parallel:
        reasons.append(f"EP={layout.tp * deployment.dp}: each GPU of a stage holds whole experts (--ep)")
    if choose_backend(deployment, cluster) == "mp":
        reasons.append(f"vLLM's own processes join the GPUs: {_why_mp(deployment, cluster)}")
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
    share: Share | None = None,
    index: int = 0,
) -> Placement:
    """The replica of a deployment with this layout (TP, PP), and what its parts run.

    It takes the first GPUs that it may, but for `gpus` (host → number), or its `share`. What runs the same as `before`
    keeps its name.

    Raises:
        UsageError: the backend cannot lay it out so.
    """
    (tp, pp), named = layout, choose_backend(deployment, cluster)
    backend, degrees = BACKENDS[named], Degrees(tp, pp, deployment.dp, deployment.expert_parallel)
    share = share or Share(gpus if gpus is not None else backend.take(available(deployment, cluster), degrees))
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
    leader = share.leader(cluster.head, alone=deployment.replicas == 1)
    chosen = Chosen(leader, share.gpus, cluster.addresses, cluster.rendezvous, share.devices)
    parts = backend.parts([*argv, *loading], env, chosen, degrees)
    meet = cluster.rendezvous
    api = None if leader == cluster.head else cluster.replicas + min(share.devices.get(leader, (0,)))
    replica = Replica(tp, pp, host, port, parts, loading, offline, deployment.dp, named, meet, api)
    name = name_of(deployment, replica)
    same = before is not None and name == name_of(cluster.renamed(before.deployment), before.replica)
    return Placement(before.generation if before and same else name, deployment, replica, index)


def command(deployment: Deployment, names: Mapping[str, str], *, layout: bool = True, flag: str = "") -> str:
    """The command line that asks for a deployment, to paste, with a flag (--NAME=VALUE) of vLLM more.

    Without its layout where another one is to be chosen. `names` are those of the hosts by address, which format 1 had.
    """
    words = ["vcluster", "serve", deployment.model]
    words += ["--name", deployment.name] if deployment.name != deployment.model else []
    several = (("--dp", deployment.dp), ("--replicas", deployment.replicas))
    degrees = (("--tp", deployment.tp), ("--pp", deployment.pp), *((name, n if n > 1 else 0) for name, n in several))
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
    several = f"{placed.deployment.replicas} replicas of " if placed.deployment.replicas > 1 else ""
    return f"{asked} ({several}{placed.replica.layout})"


def place_replicas(
    deployment: Deployment,
    cluster: Cluster,
    layout: tuple[int, int],
    port: int,
    *,
    loading: tuple[str, ...] = (),
    offline: bool = False,
    before: Order | None = None,
) -> tuple[Placement, ...]:
    """All replicas of a deployment, each where it runs already, as far as it may stay there.

    Raises:
        UsageError: they do not fit.
    """
    rows = {one.index: one for one in before.deployments} if before else {}
    make = partial(place, deployment, cluster, layout, port, loading=loading, offline=offline)
    if deployment.replicas == 1:
        return (make(before=rows.get(0)),)
    size = layout[0] * layout[1] * deployment.dp
    kept = {
        index: Share(
            {part.host: part.gpus for part in one.replica.parts},
            {part.host: part.devices for part in one.replica.parts if part.devices},
        )
        for index, one in rows.items()
        if one.deployment.replicas > 1 and one.replica.size == size
    }
    shares = deal(available(deployment, cluster), layout[0], size, deployment.replicas, kept)
    return tuple(make(share=share, index=index, before=rows.get(index)) for index, share in enumerate(shares))
