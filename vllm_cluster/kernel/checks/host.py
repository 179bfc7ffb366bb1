"""The machine itself: which one it is, its clock, its memory and the folders that it must have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import median_low
from typing import NamedTuple

from vllm_cluster.kernel.backends import joining
from vllm_cluster.kernel.checks.finding import Finding, each_host
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.inventory.model import Host, Inventory
from vllm_cluster.kernel.plan.desired import found_gpus, gpu_count
from vllm_cluster.kernel.shell_line import Option, command_line

# Hosts further apart than this cannot have their logs put in order (k0s draws the same line).
CLOCK_TOLERANCE = 30.0
# What a rank may take of the shared memory, beside Ray's object store: vLLM's ring buffers and NCCL's segments.
SHM_A_RANK = 256 << 20
# What a person decides who knows the machines; as a command it would be pasted for the wrong one.
_ONE_MACHINE = "take one out if they are one machine; "
_CLONES = (
    "if one is a clone, remove /etc/machine-id there and run systemd-machine-id-setup; if neither, do not trust them"
)
_RENAME = (
    "if each prints that name, give one of them another that neither Slurm nor a certificate knows; "
    "if one prints another, do not trust it"
)
_SYNCHRONIZE = "set the clock that is wrong, this machine's or a host's: with NTP on each they agree"
_LOOK = "if not, look on the console of each: nvidia-smi -L, and /etc/machine-id"


@each_host
def paths(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """Folders that the containers will be given."""
    for volume in inventory.volumes:
        if volume.source in facts.missing_paths:
            text = f"{volume.source}, a volume of the inventory, does not exist"
            yield Finding(
                "volume-missing",
                host.name,
                text,
                f"{command_line('mkdir', Option('-p'), volume.source, on=host.name)}, or correct volumes",
            )
    if inventory.model_cache in facts.missing_paths:
        text = f"model cache {inventory.model_cache} does not exist; vcluster up creates it"
        yield Finding(
            "model-cache-missing", host.name, text, "correct model_cache if models are elsewhere", severity="warning"
        )


@each_host
def shared_memory(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """Shared memory that is too small for the ranks, or larger than the host's memory."""
    kind = inventory.accelerator
    ranks = max(1, min(gpu_count(host, facts, kind), found_gpus(facts, kind)))
    beside = joining(inventory).SHM_BYTES
    wanted = beside + ranks * SHM_A_RANK
    if inventory.shm_size < wanted:
        text = (
            f"shm_size gives {_mb(inventory.shm_size)}, {ranks} ranks{' and Ray' * bool(beside)} may take {_mb(wanted)}"
        )
        yield Finding("shm-small", host.name, text, "set shm_size to 16g, or leave it out", severity="warning")
    elif facts.memory_bytes and inventory.shm_size > facts.memory_bytes:
        text = f"shm_size gives {_mb(inventory.shm_size)}, the host has {_mb(facts.memory_bytes)} of memory"
        fix = f"set shm_size to {max(1, facts.memory_bytes >> 31)}g: it is taken from memory as it fills"
        yield Finding("shm-large", host.name, text, fix, severity="warning")


def _mb(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


def machines(_: Inventory, facts: Mapping[str, HostFacts]) -> Iterator[Finding]:
    """One machine under two names, or what looks like it.

    Each of the hosts is named, and none alone: which of them gives what is another's cannot be known from here.
    """
    by_id, by_gpu = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for name, host in facts.items():
        if host.machine_id:
            by_id[host.machine_id].append(name)
        for uuid in {gpu.uuid for gpu in host.gpus if gpu.uuid}:
            by_gpu[uuid].append(name)
    alike = {machine_id: names for machine_id, names in by_id.items() if len(names) > 1}
    for machine_id, names in alike.items():
        text = f"{' and '.join(names)} give one machine id ({machine_id}): they are one machine, or clones"
        fix = _ONE_MACHINE + (_CLONES if _differ([facts[name] for name in names]) else _LOOK)
        yield from (Finding("same-machine", name, f"{text}, or one gives the id of another", fix) for name in names)
    shared = {tuple(names): uuid for uuid, names in sorted(by_gpu.items(), reverse=True)}
    for hosts, uuid in shared.items():
        if len(hosts) > 1 and not any({*hosts} <= {*names} for names in alike.values()):
            text = f"{' and '.join(hosts)} have one GPU ({uuid}): they are one machine, or one names the GPU of another"
            yield from (Finding("same-gpus", name, text, _ONE_MACHINE + _LOOK) for name in hosts)


def _differ(hosts: Sequence[HostFacts]) -> bool:
    """Whether hosts of one machine id are several machines by all else: clones are."""
    gpus = [gpu.uuid for host in hosts for gpu in host.gpus if gpu.uuid]
    boots = [host.boot_id for host in hosts if host.boot_id]
    return len(gpus) == len({*gpus}) > 0 and len(boots) == len({*boots}) > 0


def hostnames(_: Inventory, facts: Mapping[str, HostFacts]) -> Iterator[Finding]:
    """Hosts that call themselves the same. As in `machines`, each is named and none is to be changed from here."""
    alike = defaultdict[str, list[str]](list)
    for name, host in facts.items():
        if host.hostname:
            alike[host.hostname].append(name)
    for hostname, names in alike.items():
        text = f"{' and '.join(names)} give one hostname ({hostname}): logs show them under it, or one gives another's"
        for name in names if len(names) > 1 else ():
            fix = f"{command_line('hostnamectl', on=name)}; {_RENAME}"
            yield Finding("same-hostname", name, text, fix, severity="warning")


class _Ahead(NamedTuple):
    """How far a clock is ahead of this machine's, in seconds: at most and at least, since an answer takes its time."""

    most: float
    least: float

    def is_apart(self, other: _Ahead) -> bool:
        """Whether no moment of the one is near one of the other."""
        return max(self.least - other.most, other.least - self.most) > CLOCK_TOLERANCE


def clocks(_: Inventory, facts: Mapping[str, HostFacts]) -> Iterator[Finding]:
    """Clocks that differ: with this machine's, of two hosts there is a majority too. Where none is, all are named."""
    asked = {name: (host.clock - host.observed_at, host.observed_within) for name, host in facts.items()}
    ahead = {name: _Ahead(most, most - within) for name, (most, within) in asked.items()}
    if not ahead or not any(_apart(ahead.values())):
        return  # This machine's own may be the wrong one.
    every = [*ahead.values(), _Ahead(0.0, 0.0)]
    middle, known = median_low(every), 2 * sum(_apart(every)) < len(every)
    for name, one in ahead.items():
        if not known:
            text = (
                f"its clock is {one.most:+.0f} s from this machine's, and too few clocks agree to know which is right"
            )
            yield Finding(
                "clock-skew", name, text, f"{command_line('timedatectl', on=name)}; {_SYNCHRONIZE}", severity="warning"
            )
        elif one.is_apart(middle):
            text = f"its clock is {one.most - middle.most:+.0f} s from the other machines'"
            fix = f"on {name}: chronyc makestep, or timedatectl set-ntp true"
            yield Finding("clock-skew", name, text, fix, severity="warning")


def _apart(clocks: Collection[_Ahead]) -> list[bool]:
    """Which of these are apart from the one in their middle: of two that is the low one, not what is between them."""
    middle = median_low(clocks)
    return [one.is_apart(middle) for one in clocks]
