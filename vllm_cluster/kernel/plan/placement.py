"""Places a deployment on the hosts of a cluster; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from vllm_cluster.kernel.backends import BACKENDS, vllm
from vllm_cluster.kernel.backends.seam import Chosen, Degrees
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.plan.shares import Share, deal, most, replica_sizes
from vllm_cluster.kernel.shell_line import Option, command_line, typed_words
from vllm_cluster.kernel.text import redact_words
from vllm_cluster.wire.backends import BackendName
from vllm_cluster.wire.order import RENDEZVOUS, Deployment, Placement, Replica, name_of
from vllm_cluster.wire.values import LOOPBACK

if TYPE_CHECKING:
    from vllm_cluster.kernel.inventory.model import Inventory


@dataclass(frozen=True)
class Cluster:
    """The hosts as they are now, by name, the head first: their GPUs, and their private addresses.

    `known` has the name of now by each name and address that a host had in the record of before. `backend` is what
    joins them, `rendezvous` where parts of a replica meet; `replicas` is the first port of those that others lead.
    `taken` are the numbers of the GPUs that other deployments have; `runs` is what joins the parts of a deployment that
    is served already, where it stays so.
    """

    gpus: Mapping[str, int]
    addresses: Mapping[str, str]
    known: Mapping[str, str] = field(default_factory=dict)
    backend: BackendName = "ray"
    rendezvous: tuple[int, int] = RENDEZVOUS
    replicas: int = 8100
    taken: Mapping[str, frozenset[int]] = field(default_factory=dict)
    runs: BackendName | None = None

    @classmethod
    def of(cls, inventory: Inventory, gpus: Mapping[str, int]) -> Cluster:
        """The hosts of an inventory, whose GPUs are by address."""
        names = {host.address: name for name, host in inventory.hosts.items()}
        by_name = {names[at]: count for at, count in gpus.items()}
        ports = inventory.ports
        meet, addresses = (ports.master, ports.data_parallel), {names[at]: at for at in gpus}
        return cls(by_name, addresses, {}, inventory.backend, meet, ports.replicas)

    def keeping(self, backend: BackendName) -> Cluster:
        """The same for a deployment whose parts are joined by this already, where that is still there."""
        there = backend == self.backend or not BACKENDS[backend].LED_BY_HEAD
        return replace(self, runs=backend if there else None)

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
    """The GPUs that a deployment may take: those of the hosts that it names, or of all, that others do not have.

    Without hosts and degrees it gets no host that it would share: its layout would follow from what is left there.
    """
    named = deployment.hosts or tuple(cluster.gpus)
    free = {name: count - len(cluster.taken.get(name, ())) for name, count in cluster.gpus.items() if name in named}
    shares = deployment.hosts or deployment.tp or deployment.pp or deployment.dp > 1
    if cluster.runs and BACKENDS[cluster.runs].LED_BY_HEAD:
        shares = False  # what leads it does not choose which GPUs of a host it gets
    return {name: count for name, count in free.items() if count == cluster.gpus[name] or (count and shares)}


def choose_backend(deployment: Deployment, cluster: Cluster) -> BackendName:
    """What makes one engine of a deployment's parts.

    Raises:
        UsageError: what is asked for is not there.
    """
    if cluster.backend == "mp" and deployment.backend not in ("", "mp"):
        fix = "leave out --backend ray, or set backend: ray in the inventory, then vcluster up"
        raise UsageError("this cluster has no Ray", hint=fix)
    if (deployment.replicas > 1 or (cluster.taken and not cluster.runs)) and deployment.backend not in ("", "mp"):
        # vLLM asks Ray for GPUs anywhere: two of its engines take each other's.
        what = "replicas" if deployment.replicas > 1 else "models"
        raise UsageError(f"vcluster runs several {what} without Ray", hint="leave out --backend ray")
    alone = deployment.dp == 1 and deployment.replicas == 1 and not cluster.taken
    return deployment.backend or cluster.runs or (cluster.backend if alone else "mp")


def _why_mp(deployment: Deployment, cluster: Cluster) -> str:
    """What chose mp, as the plan names it."""
    if deployment.backend:
        return "without Ray (--backend mp)"
    if len(cluster.gpus) == 1:
        return "one host needs no Ray"
    if cluster.backend == "mp":
        return "without Ray (backend: mp)"
    if cluster.taken:
        return "without Ray (beside another model)"
    if deployment.replicas > 1 or deployment.dp > 1:
        return f"without Ray ({'--replicas' if deployment.replicas > 1 else '--dp'})"
    return "without Ray, as it is served already"


def choose_layout(deployment: Deployment, cluster: Cluster) -> vllm.Parallelism:
    """How a deployment is laid over the GPUs that it may take, and why.

    Raises:
        UsageError: they cannot be split so.
    """
    there = available(deployment, cluster)
    where = ", ".join(there) if deployment.hosts else "the cluster"
    where = f"the rest of {where}" if cluster.taken else where
    if deployment.replicas > 1:
        tp, pp, why = replica_sizes(there, deployment.tp, deployment.pp, deployment.dp, deployment.replicas)
        layout = vllm.Parallelism(tp, pp, (why,))
    elif deployment.dp > 1:
        layout = vllm.choose_engines(list(there.values()), deployment.tp, deployment.pp, deployment.dp, where=where)
    else:
        layout = vllm.choose_parallelism(list(there.values()), deployment.tp, deployment.pp, where=where)
    reasons = list(layout.reasons)
    if deployment.expert_parallel:
        reasons.append(f"EP={layout.tp * deployment.dp}: each GPU of a stage holds whole experts (--ep)")
    if choose_backend(deployment, cluster) == "mp":
        reasons.append(f"vLLM's own processes join the GPUs: {_why_mp(deployment, cluster)}")
    return replace(layout, reasons=tuple(reasons))


def most_replicas(deployment: Deployment, cluster: Cluster) -> int:
    """How many replicas fit on the GPUs that a deployment may take."""
    nodes = {name: cluster.gpus[name] for name in available(deployment, cluster)}
    return most(nodes, deployment.tp, deployment.pp, deployment.dp, cluster.taken)


def idle_gpus(placed: tuple[Placement, ...], cluster: Cluster) -> str:
    """The GPUs that no model has once this is placed, for people; empty where there are none."""
    left = {name: number - len(cluster.taken.get(name, ())) for name, number in cluster.gpus.items()}
    for one in placed:
        for name, number in share_of(one.replica).gpus.items():
            left[name] -= number
    where = ", ".join(f"{number} of {name}" for name, number in left.items() if number)
    all_ = sum(cluster.gpus.values())
    return f"this layout leaves {sum(left.values())} of the {all_} GPUs idle: {where}" if where else ""


def place_replica(
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
    share = share if backend.LED_BY_HEAD else share.numbered(cluster.gpus)
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
    env = vllm.vllm_environment() | (vllm.OFFLINE if offline else {})
    leader = cluster.head if backend.LED_BY_HEAD else share.leader(cluster.head)
    chosen = Chosen(leader, share.gpus, cluster.addresses, cluster.rendezvous, share.devices)
    parts = backend.parts([*argv, *loading], env, chosen, degrees)
    meet = cluster.rendezvous
    api = None if leader == cluster.head else cluster.replicas + min(share.devices.get(leader, (0,)))
    replica = Replica(tp, pp, host, port, parts, loading, offline, deployment.dp, named, meet, api)
    name = name_of(deployment, replica)
    same = before is not None and name == name_of(cluster.renamed(before.deployment), before.replica)
    return Placement(before.generation if before and same else name, deployment, replica, index)


def serve_command(
    deployment: Deployment,
    names: Mapping[str, str],
    *,
    verb: Sequence[str] = ("serve",),
    layout: bool = True,
    flag: str = "",
) -> str:
    """The command line that asks for a deployment, to paste, with a flag (--NAME=VALUE) of vLLM more.

    Without its layout where another one is to be chosen. `names` are those of the hosts by address, which format 1 had.
    """
    # No value is an option: a command line of other people may have chosen it.
    words = ["vcluster", *verb, deployment.model]
    words += [Option("--name"), deployment.name] if deployment.name != deployment.model else []
    several = ((Option("--dp"), deployment.dp), (Option("--replicas"), deployment.replicas))
    degrees = ((Option("--tp"), deployment.tp), (Option("--pp"), deployment.pp))
    for option, number in (*degrees, *((option, number) for option, number in several if number > 1)):
        words += [option, str(number)] if layout and number else []
    words += [Option("--ep")] if deployment.expert_parallel else []
    words += [Option("--backend"), deployment.backend] if deployment.backend else []
    if hosts := [names.get(host, host) for host in deployment.hosts]:
        words += [Option("--hosts"), ",".join(hosts)]
    words += [Option("--expose")] if deployment.expose else []
    words += [] if deployment.rollback else [Option("--no-rollback")]
    # Of two equal flags the last one counts.
    flags = [*deployment.flags, *([flag] if flag else [])]
    behind = [Option("--"), *typed_words(redact_words(flags))] if flags else []
    return command_line(*redact_words(words), *behind)


def summary(placed: Placement, names: Mapping[str, str]) -> str:
    """A deployment in a line, for the history: all that it asks for, to serve it again, and the chosen layout."""
    asked = serve_command(placed.deployment, names).removeprefix("vcluster serve ")
    return f"{asked} ({placed.replica.layout})"


def place_replicas(
    deployment: Deployment,
    cluster: Cluster,
    layout: tuple[int, int],
    port: int,
    *,
    loading: tuple[str, ...] = (),
    offline: bool = False,
    before: tuple[Placement, ...] = (),
    beside: tuple[Placement, ...] = (),
) -> tuple[Placement, ...]:
    """All replicas of a deployment, each where it ran `before`, as far as it may stay there.

    Raises:
        UsageError: they do not fit.
    """
    make = partial(place_replica, deployment, cluster, layout, port, loading=loading, offline=offline)
    rows = {one.index: one for one in before}
    used = {one.index for one in beside}
    free = (one for one in range(len(rows) + len(used) + deployment.replicas) if one not in used)
    # What is served in a replica's place has its number, or it could not go back there.
    indices = sorted([*rows, *(one for one in free if one not in rows)][: deployment.replicas])
    own = BACKENDS[choose_backend(deployment, cluster)]
    if own.LED_BY_HEAD or (deployment.replicas == 1 and not cluster.taken):
        return (make(before=rows.get(indices[0]), index=indices[0]),)
    size = layout[0] * layout[1] * deployment.dp
    kept = {index: share_of(one.replica) for index, one in rows.items() if _may_stay(one, size)}
    nodes = {name: cluster.gpus[name] for name in available(deployment, cluster)}
    shares = deal(nodes, layout[0], size, indices, kept=kept, taken=cluster.taken)
    return tuple(make(share=share, index=index, before=rows.get(index)) for index, share in shares.items())


def share_of(replica: Replica) -> Share:
    """The GPUs that a replica has."""
    parts = [part for part in replica.parts if part.gpus]
    return Share({part.host: part.gpus for part in parts}, {part.host: part.devices for part in parts if part.devices})


def _may_stay(placed: Placement, size: int) -> bool:
    """Whether its GPUs are those of the same layout, and known by their numbers."""
    replica = placed.replica
    return replica.size == size and not BACKENDS[replica.backend].LED_BY_HEAD
