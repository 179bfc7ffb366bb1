"""The machine itself: which one it is, its clock, its memory and the folders that it must have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median_low

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
    """Two hosts that call themselves the same."""
    seen = dict[str, str]()
    for name, host in facts.items():
        first = seen.setdefault(host.hostname, name) if host.hostname else name
        if first != name:
            text = f"hostname {host.hostname} is also that of {first}: logs show both under one name"
            yield Finding(
                "same-hostname",
                name,
                text,
                command_line("sudo", "hostnamectl", "set-hostname", name, on=name),
                severity="warning",
            )


def clocks(_: Inventory, facts: Mapping[str, HostFacts]) -> Iterator[Finding]:
    """Clocks that differ."""
    # The low one: with two hosts, the middle between them would halve the difference.
    clocks = {name: host.clock - host.observed_at for name, host in facts.items()}
    middle = median_low(clocks.values())
    for name, clock in clocks.items():
        if abs(clock - middle) > CLOCK_TOLERANCE:
            text = f"its clock is {clock - middle:+.0f} s from the other hosts'"
            yield Finding(
                "clock-skew",
                name,
                text,
                f"on {name}: chronyc makestep, or timedatectl set-ntp true",
                severity="warning",
            )
