"""The machine itself: which one it is, its clock, its memory and the folders that it must have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median_low

from vllm_cluster.kernel.backends import joining
from vllm_cluster.kernel.checks.finding import Finding, each_host
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.inventory.model import Host, Inventory
from vllm_cluster.kernel.plan.desired import found_gpus, gpu_count
from vllm_cluster.kernel.shell_line import command_line

# Hosts further apart than this cannot have their logs put in order (k0s draws the same line).
CLOCK_TOLERANCE = 30.0
# What a rank may take of the shared memory, beside Ray's object store: vLLM's ring buffers and NCCL's segments.
SHM_A_RANK = 256 << 20


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
                f"{command_line('mkdir', '-p', volume.source, on=host.name)}, or correct volumes",
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
    """One machine under two names, or clones that look like it."""
    ids, gpus = dict[str, str](), dict[str, str]()
    for name, host in facts.items():
        first = ids.setdefault(host.machine_id, name) if host.machine_id else name
        if first != name:
            text = f"{name} and {first} are one machine, or clones with one machine id ({host.machine_id})"
            fix = "take one out; on clones: rm /etc/machine-id && systemd-machine-id-setup"
            yield Finding("same-machine", name, text, fix)
            continue
        owner = next((gpus[gpu.uuid] for gpu in host.gpus if gpu.uuid in gpus), None)
        if owner:
            text = f"its GPUs are those of {owner}: {host.gpus[0].uuid}"
            yield Finding("same-gpus", name, text, f"take {name} or {owner} out: they are one machine")
        gpus |= {gpu.uuid: name for gpu in host.gpus if gpu.uuid}


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
