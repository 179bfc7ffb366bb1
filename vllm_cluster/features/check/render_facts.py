"""The facts of hosts, as lines for people and as a document for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from vllm_cluster.kernel.facts.details import Details
from vllm_cluster.kernel.facts.host_facts import OF_THIS_MACHINE, HostFacts
from vllm_cluster.kernel.plan.gpus import cdi_on
from vllm_cluster.kernel.terminal.output import BOLD, out, styles
from vllm_cluster.kernel.terminal.printable import plain
from vllm_cluster.kernel.text import count

GB = 1e9


def facts_document(found: Mapping[str, HostFacts]) -> dict[str, Any]:
    """The facts as JSON would have them: the fields of the types, sets as sorted lists."""
    return {"v": 1, "hosts": {name: _document(facts) for name, facts in found.items()}}


def _document(facts: HostFacts) -> dict[str, Any]:
    return {key: _plain(value) for key, value in asdict(facts).items() if key not in OF_THIS_MACHINE}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value


def show_facts(found: Mapping[str, HostFacts], *, color: str) -> None:
    """Write on standard output: a block for each host."""
    bold, end = styles(color, BOLD)
    for name, facts in found.items():
        out(bold, plain(name), end)
        for what, words in _lines(facts):
            out(f"  {what:<11} {plain(words).replace(chr(10), ' ')}")


def _lines(facts: HostFacts) -> Iterator[tuple[str, str]]:
    details = facts.details or Details()
    yield "host", f"{facts.hostname}, {facts.architecture}, machine {facts.machine_id or 'without an id'}"
    yield "resolves to", ", ".join(details.hostname_addresses or ()) or "its hostname is not known to it"
    yield "memory", f"{facts.memory_bytes / GB:.1f} GB, {facts.available_bytes / GB:.1f} available"
    yield from _docker(facts)
    yield from _gpus(facts, details)
    for nic in facts.nics:
        speed = f", {nic.speed_mbit} Mbit/s" if nic.speed_mbit else ""
        words = f"{nic.name} {nic.kind} {nic.state}, MTU {nic.mtu}{speed}: {', '.join(nic.addresses) or 'no address'}"
        yield "interface", " ".join(words.split()) + (" (dynamic)" if nic.dynamic else "")
    yield from _rdma(facts)
    for disk in details.filesystems:
        free = facts.free_bytes.get(disk.path, 0)
        yield (
            "disk",
            f"{disk.path}: {disk.kind} of {disk.source}, {free / GB:.1f} of {disk.total_bytes / GB:.1f} GB free",
        )
    for model, commit in details.revisions.items():
        yield "model", f"{model.replace('--', '/')} at {commit[:12]}"


def _docker(facts: HostFacts) -> Iterator[tuple[str, str]]:
    docker = facts.docker
    if docker.problem:
        # Not under the name of a program: what a host reports behind it would be a command line.
        yield "engine", docker.problem
        return
    toolkit = f", NVIDIA toolkit {docker.toolkit_version}" if docker.toolkit_version else ""
    devices = ", ".join(docker.cdi_devices or docker.cdi_specs)
    off = " (in a file; off in Docker)" if devices and not cdi_on(docker) else ""
    version = f"Docker {docker.version or 'of unknown version'}"
    yield "engine", f"{version}, cgroup {docker.cgroup_version} by {docker.cgroup_driver}{toolkit}"
    yield "runtimes", ", ".join(docker.container_runtimes) + (f"; CDI: {devices}{off}" if devices else "")
    if facts.details and (image := facts.details.image):
        cuda = f", CUDA {image.cuda}" if image.cuda else ""
        yield (
            "image",
            f"{image.id[:19]} for {image.architecture}{cuda}, entrypoint {' '.join(image.entrypoint) or 'none'}",
        )
    for container in (*facts.containers, *facts.other_containers):
        yield "container", f"{container.name} {container.state} ({container.image})"


def _gpus(facts: HostFacts, details: Details) -> Iterator[tuple[str, str]]:
    health = {gpu.uuid: gpu for gpu in details.gpu_health}
    if facts.logical_gpus is not None:
        yield "GPUs", count(facts.logical_gpus, "logical GPU")
    for gpu in facts.gpus:
        held = f"{gpu.used_mib} of {gpu.memory_mib} MiB used"
        held = f"{gpu.memory_mib} MiB of the host's memory, which it shares" if gpu.unified else held
        words = f"{gpu.index}: {gpu.name}, {held}, driver {gpu.driver}"
        if more := health.get(gpu.uuid):
            words += f", MIG {more.mig}, ECC {more.ecc} ({more.ecc_uncorrected} uncorrected)"
            words += f", fabric {more.fabric_state}" if more.fabric_state else ""
        yield "GPU", words
        for process in gpu.processes:
            where = "unknown container" if process.container is None else process.container[:12] or "host"
            user = process.user or "unknown user"
            yield "process", f"{process.pid} {process.name}: {process.used_mib} MiB, {user}, {where}"
    for link in details.nvlinks:
        yield "NVLink", f"GPU {link.gpu}: {link.active} of {link.total} links active"


def _rdma(facts: HostFacts) -> Iterator[tuple[str, str]]:
    for hca in facts.hcas:
        where = f"{', '.join(hca.netdevs) or 'no netdev'}, PCI {hca.pci}, NUMA {hca.numa}"
        yield "adapter", f"{hca.device} port {hca.port}: {hca.state}, {hca.link_layer}, {hca.rate}, {where}"
    for gid in facts.gids:
        yield "GID", f"{gid.device} port {gid.port} index {gid.index}: {gid.kind} {gid.address} {gid.netdev}"
    if facts.rdma_devices and not facts.hcas:
        yield "adapter", f"none, though there is {', '.join(facts.rdma_devices[:4])}"
