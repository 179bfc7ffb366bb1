"""All-reduce over all ranks in the containers that will serve; where it fails, in each host, then among neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from vllm_cluster.features.check import allreduce
from vllm_cluster.features.check.allreduce import AllReduceTime, Pair, Trial
from vllm_cluster.features.check.rank_driver import RankDriver, TrialLimits
from vllm_cluster.kernel.backends import TOKEN
from vllm_cluster.kernel.backends.nccl import NcclTransport, transport
from vllm_cluster.kernel.checks.finding import Finding
from vllm_cluster.kernel.clock import Clock, Deadline
from vllm_cluster.kernel.docker.temporary import TemporaryContainer
from vllm_cluster.kernel.errors import HostError, VclusterError
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.hosts.program import RunningProgram, python
from vllm_cluster.kernel.hosts.program import start as start_program
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.adapters import gigabits
from vllm_cluster.kernel.plan.desired import Inputs, desired, gpu_count, hcas
from vllm_cluster.kernel.plan.identity import decide_cluster_id, without_lease
from vllm_cluster.kernel.plan.images import find_image, node_image_name
from vllm_cluster.kernel.plan.spec import ContainerSpec
from vllm_cluster.wire.programs import RanksReady

# Everything, bisection and clearing away included.
SECONDS = 90.0
CLEARING_SECONDS = 8.0
START_SECONDS = 40.0
# Nothing of this stays on a host for longer, whoever forgot it.
LIFE_SECONDS = 150.0
_GLOO = "GLOO_SOCKET_IFNAME"
_KIB, _MIB = 1 << 10, 1 << 20
SIZES = {
    "nvidia": (_KIB, 64 * _KIB, _MIB, 16 * _MIB, 256 * _MIB),
    "cpu": (_KIB, 64 * _KIB, _MIB, 16 * _MIB),
}
# How long no rank may come a step further: NCCL takes seconds to join hundreds of GPUs, gloo does not.
WHOLE = {"nvidia": TrialLimits(45.0, 20.0, 20.0), "cpu": TrialLimits(40.0, 12.0, 15.0)}
PART = {"nvidia": TrialLimits(20.0, 12.0, 5.0), "cpu": TrialLimits(15.0, 8.0, 5.0)}
# What the field switches off, in the order of how often it helps.
SWITCHES = (("NCCL_P2P_DISABLE", "1"), ("NCCL_NVLS_ENABLE", "0"), ("NCCL_IB_DISABLE", "1"))


@dataclass(frozen=True)
class AllReduceReport:
    """What the ranks did together: figures by size, the way that the bytes took, and what is wrong."""

    findings: tuple[Finding, ...] = ()
    rows: tuple[AllReduceTime, ...] = ()
    nccl_transport: NcclTransport = field(default_factory=NcclTransport)
    world_size: int = 0
    seconds: float = 0.0
    torch: str = ""
    # What the slowest host's link should give, in GB/s; None where it is unknown, or no link is in it.
    expected_gb_per_s: float | None = None
    # The errors of the ranks and what NCCL logged, where they failed.
    words: tuple[str, ...] = ()


def run_allreduce(fleet: Fleet, inventory: Inventory, facts: Mapping[str, HostFacts], emit: Emit) -> AllReduceReport:
    """Try it, in at most `SECONDS`. Leaves nothing; hosts on which it cannot be tried are findings."""
    clock, deadline = fleet.runtime.clock, fleet.runtime.after(SECONDS - CLEARING_SECONDS)
    began = clock.monotonic()
    inputs = Inputs("", {TOKEN: "none"}, decide_cluster_id(inventory, facts) or "")
    # Only the secrets' paths depend on their ids, and no rank reads a secret here.
    specs = {spec.host: _bare(inventory, spec) for spec in desired(inventory, facts, inputs)}
    if any(container.state == "running" for host in facts.values() for container in host.containers):
        emit(Event("warning", "the cluster is up: this shares its GPUs for a moment, and slows down what is served"))
    emit(Event("progress", f"starting {sum(spec.gpu_count for spec in specs.values())} ranks on {len(specs)} hosts"))
    program, opened = python("features.check.on_host", "allreduce", seconds=LIFE_SECONDS), dict[str, RunningProgram]()

    def start(connection: HostConnection) -> RanksReady:
        spec, soon = specs[connection.name], deadline.sooner(START_SECONDS)
        image = _image(spec, facts[connection.name])
        place = TemporaryContainer(without_lease(inventory.cluster), "ranks", image, like=spec)
        opened[connection.name] = start_program(connection, program, place, soon)
        return opened[connection.name].read(RanksReady, soon)

    try:
        ready, failures = fleet.each(start, specs)
        if failures:
            return AllReduceReport(
                tuple(_unseen(host, error) for host, error in failures.items()), seconds=_since(began, clock)
            )
        stage = RankDriver(inventory.accelerator, specs, opened, emit, fleet.runtime)
        return replace(_tried(stage, inventory, facts, ready, deadline), seconds=_since(began, clock))
    finally:
        # This waits until they have gone.
        fleet.each(lambda connection: opened[connection.name].close(), opened)


def _since(began: float, clock: Clock) -> float:
    return round(clock.monotonic() - began, 1)


def _bare(inventory: Inventory, spec: ContainerSpec) -> ContainerSpec:
    """Without our volumes and the model cache: they may not be there yet, and must not come into being by this."""
    own = {volume.target for volume in inventory.volumes}
    return replace(spec, mounts=tuple(mount for mount in spec.mounts if mount.target in own))


def _image(spec: ContainerSpec, facts: HostFacts) -> str:
    """The image that serves: with its Ray layer, where that is built already.

    Raises:
        HostError: it is not on the host.
    """
    base = find_image(spec.image, facts.images)
    if base is None:
        raise HostError(spec.host, f"image {spec.image} is not on the host", hint="vcluster up")
    return (find_image(node_image_name(base.id, spec.requirements), facts.images) or base).id


def _unseen(host: str, error: VclusterError) -> Finding:
    text = f"all-reduce test skipped: {getattr(error, 'detail', error.message)}"
    return Finding("allreduce-skipped", host, text, error.hint or "correct this, then:\nvcluster check --deep")


def _tried(
    stage: RankDriver,
    inventory: Inventory,
    facts: Mapping[str, HostFacts],
    ready: Mapping[str, RanksReady],
    deadline: Deadline,
) -> AllReduceReport:
    kind, hosts = inventory.accelerator, list(stage.specs)
    (whole,) = stage.run([hosts], SIZES[kind], WHOLE[kind], deadline)
    expected = _expected(inventory, facts, ready) if kind == "nvidia" else None
    names = dict.fromkeys(value for spec in stage.specs.values() for key, value in spec.environment if key == _GLOO)
    chosen = transport(whole.log) if kind == "nvidia" else NcclTransport(("TCP",), interfaces=tuple(names))
    if not whole.ok:
        stage.emit(Event("progress", f"{whole.why()}: testing each host alone, then neighbours"))
        alone, pairs = _parts(stage, whole, deadline)
        found = allreduce.locate_fault(whole, alone, pairs)
        failed = next((trial for trial in [*alone.values(), *pairs.values()] if not trial.ok), whole)
        found[0] = _try_switches(stage, found[0], failed.hosts, deadline)
    else:
        found = []
        if expected and allreduce.slow(whole.rows(), expected):
            stage.emit(Event("progress", "slower than the link: testing neighbours"))
            pairs = _neighbours(stage, hosts, deadline)
            found = [allreduce.slow_link_finding(whole, expected, pairs)]
        active = {name: [port.device for port in hcas(inventory.hosts[name], facts[name])] for name in hosts}
        found += allreduce.transport_findings(hosts[0], chosen, active)
    torch = ready[hosts[0]].torch[:40]
    words = () if whole.ok else (*whole.errors.values(), *whole.log)
    return AllReduceReport(
        tuple(found), whole.rows(), chosen, len(whole.ranks), torch=torch, expected_gb_per_s=expected, words=words
    )


def _parts(stage: RankDriver, whole: Trial, deadline: Deadline) -> tuple[dict[str, Trial], dict[Pair, Trial]]:
    """Every host alone, then neighbours among those that work alone."""
    several = [host for host in whole.hosts if stage.specs[host].gpu_count > 1]
    alone = dict(zip(several, _run(stage, [[host] for host in several], deadline), strict=False))
    sound = [host for host in whole.hosts if host not in alone or alone[host].ok]
    if len(whole.hosts) == len(sound) == 2 and whole.given_up:
        return alone, {(sound[0], sound[1]): whole}  # what failed by itself, though, may work when tried again
    return alone, _neighbours(stage, sound, deadline)


def _neighbours(stage: RankDriver, hosts: Sequence[str], deadline: Deadline) -> dict[Pair, Trial]:
    """Each host with the next, around all of them, while there is time."""
    tried: dict[Pair, Trial] = {}
    for pairs in allreduce.ring(hosts):
        tried |= zip(pairs, _run(stage, pairs, deadline), strict=False)
    return tried


def _run(
    stage: RankDriver, groups: Sequence[Sequence[str]], deadline: Deadline, environment: Mapping[str, str] | None = None
) -> list[Trial]:
    """A trial of parts; none where it might not end in time."""
    limits = PART[stage.accelerator]
    if not groups or deadline.left() < limits.whole:
        return []
    return stage.run(groups, SIZES[stage.accelerator], limits, deadline, environment)


def _try_switches(stage: RankDriver, finding: Finding, group: Sequence[str], deadline: Deadline) -> Finding:
    """The finding, with the first switch of NCCL's by which its group works."""
    for name, value in SWITCHES if stage.accelerator == "nvidia" else ():
        for trial in _run(stage, [group], deadline, {name: value}):
            if trial.ok:
                works = f'with {name}={value} it works: in the inventory, environment: {{{name}: "{value}"}}'
                return replace(finding, fix=works)
    return finding


def _expected(inventory: Inventory, facts: Mapping[str, HostFacts], ready: Mapping[str, RanksReady]) -> float | None:
    """What the slowest host's link should give, in GB/s: its adapters, as many as GPUs, else its interface."""
    links = []
    for name, host in inventory.hosts.items():
        rates = sorted((gigabits(port.rate) for port in hcas(host, facts[name])), reverse=True)
        whole = sum(rates[: gpu_count(host, facts[name], inventory.accelerator)])
        links.append((whole or (ready[name].speed or 0) / 1000) / 8)
    return min(links) if len(links) > 1 and min(links) > 0 else None
