"""The GPUs: how many, how well, and who else uses them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from vllm_cluster.kernel.checks.finding import Finding, each_host, outliers
from vllm_cluster.kernel.facts.details import GpuHealth
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.facts.values import number
from vllm_cluster.kernel.inventory.model import Host, Inventory
from vllm_cluster.kernel.plan import gpus
from vllm_cluster.kernel.plan.desired import found_gpus
from vllm_cluster.kernel.plan.gpus import HeldMemory
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.text import plural

# N/A on GPUs without NVSwitch.
FABRIC_WELL = ("", "Completed", "Not Supported")
MAX_NAMED = 4
# Xids of a program that computes wrongly, or is killed: its card is well (NVIDIA's list of Xid errors).
_OF_PROGRAMS = re.compile(r"Xid \([^)]{0,80}\): (?:13|31|43|45),")


@each_host
def enough_gpus(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """At least as many GPUs as the inventory expects, and at least one."""
    found = found_gpus(facts, inventory.accelerator)
    if inventory.accelerator == "cpu" and host.gpu_number is not None and facts.logical_gpus is None:
        found = host.gpu_number  # a CPU host without a declared number offers what the inventory asks for
    kind, source = (
        ("logical GPU", "from /etc/vcluster/slots") if inventory.accelerator == "cpu" else ("GPU", "by nvidia-smi")
    )
    reason = f": {facts.gpu_problem}" if facts.gpu_problem and inventory.accelerator == "nvidia" else ""
    if inventory.accelerator == "nvidia" and not found and "version mismatch" in facts.gpu_problem:
        text = f"the driver was updated, and the kernel still runs the one before: {facts.gpu_problem}"
        yield Finding("driver-not-reloaded", host.name, text, command_line("sudo", "reboot", on=host.name))
    elif isinstance(host.gpus, tuple) and inventory.accelerator == "nvidia":
        have = {*(gpu.index for gpu in facts.gpus), *(gpu.uuid for gpu in facts.gpus)}
        lacking = [name for name in host.gpus if name not in have]
        if lacking or len(gpus.chosen(host, facts)) < len(host.gpus):
            what = ", ".join(map(str, lacking)) or "one GPU by index and by UUID"
            there = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in facts.gpus[:MAX_NAMED]) or "none"
            text = f"the inventory names GPU {what}, the host has {there}{reason}"
            yield Finding("gpu-not-found", host.name, text, f"correct hosts.{host.name}.gpus: see nvidia-smi -L")
    elif host.gpu_number is not None and host.gpu_number > found:
        text = f"{found} {plural(found, kind)} found, inventory expects {host.gpu_number} ({source}){reason}"
        yield Finding("gpus-missing", host.name, text, f"set hosts.{host.name}.gpus to {found}, or repair the host")
    elif not found:
        text = f"no {kind}s ({source}) found{reason}"
        yield Finding("no-gpus", host.name, text, "install the NVIDIA driver, or take the host out of the inventory")


@each_host
def state(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """Problems in `nvidia-smi --query-gpu`: memory in use, MIG, memory errors."""
    if inventory.accelerator != "nvidia":
        return
    if held := gpus.held_by_others(inventory.cluster, host, facts):
        text = f"used by others: {'; '.join(_held(one, facts) for one in held[:MAX_NAMED])}"
        yield Finding("gpu-busy", host.name, text, _free(host.name, held), severity="warning")
    wanted = gpus.of_node(inventory.cluster, host, facts)
    if split := [gpu.index for gpu in wanted if gpu.mig]:
        text = f"MIG is on for GPU {_list(split)}: a process sees at most one slice"
        fix = command_line("sudo", "nvidia-smi", Option("-i"), _list(split), Option("-mig"), "0", on=host.name)
        yield Finding("mig-enabled", host.name, text, fix, severity="warning")
    if wrong := {gpu.index: gpu.ecc_errors for gpu in wanted if gpu.ecc_errors}:
        text = "uncorrected memory errors since the driver was loaded: " + ", ".join(
            f"{errors} on GPU {index}" for index, errors in list(wrong.items())[:MAX_NAMED]
        )
        yield Finding("gpu-ecc-errors", host.name, text, _reset(host.name, list(wrong)), severity="warning")


def _list(indices: list[int]) -> str:
    return ",".join(map(str, indices))


def _reset(host: str, indices: list[int]) -> str:
    reset = command_line("sudo", "nvidia-smi", Option("-i"), _list(indices), Option("--gpu-reset"))
    return f"on {host}, with nothing running: {reset}, or reboot it"


def _held(held: HeldMemory, facts: HostFacts) -> str:
    unknown = held.gpu.unified or not held.mib
    size = "its memory" if unknown else f"{held.mib / 1024:.1f} of {held.gpu.memory_mib / 1024:.1f} GiB"
    return f"GPU {held.gpu.index}: {size} by {name_processes(held, facts)}"


def name_processes(held: HeldMemory, facts: HostFacts) -> str:
    """Who uses a GPU, for people: each process with its user and its container, and its memory where there are more."""
    names = {container.id: container.name for container in (*facts.containers, *facts.other_containers)}
    words = []
    for process in held.processes[:MAX_NAMED]:
        marks = [f"pid {process.pid}", *([f"user {process.user}"] if process.user else [])]
        if process.container:
            marks.append(f"container {names.get(process.container, process.container[:12])}")
        if len(held.processes) > 1:
            marks.append(f"{process.used_mib / 1024:.1f} GiB")
        words.append(f"{process.name} ({', '.join(marks)})")
    more = len(held.processes) - len(words)
    return ", ".join([*words, *([f"{more} more"] if more else [])]) or "processes that nvidia-smi does not list"


def find_out(host: str, held: Iterable[HeldMemory]) -> str:
    """The command that shows whose those processes are."""
    pids = list(dict.fromkeys(str(process.pid) for one in held for process in one.processes))[:MAX_NAMED]
    words = ("ps", Option("-o"), "pid,user,lstart,args", Option("-p"), ",".join(pids)) if pids else ("nvidia-smi",)
    return command_line(*words, on=host) + ("" if pids else ", docker ps")


def _free(host: str, held: Sequence[HeldMemory]) -> str:
    share = min(one.share for one in held)
    beside = command_line("vcluster", "serve", "MODEL", Option("--"), Option("--gpu-memory-utilization"), str(share))
    tight = share and any(map(_tight, held))
    return f"{find_out(host, held)}, then end it" + (f"\nor {beside}" if tight else "")


def _tight(held: HeldMemory) -> bool:
    """Whether vLLM does not start beside them with its default."""
    return held.mib > held.gpu.memory_mib * gpus.OTHERS_SHARE


@each_host
def health(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """Problems in `nvidia-smi -q` and the kernel log."""
    details = facts.details
    if inventory.accelerator != "nvidia" or details is None:
        return
    yield from _fabric(host.name, details.gpu_health, details.fabric_manager)
    if xids := [line for line in details.xids or () if not _OF_PROGRAMS.search(line)]:
        text = f"the kernel's log has {len(xids)} Xid {plural(len(xids), 'error')}, the last: {xids[-1].strip()}"
        fix = f"look the number up in the list of Xid errors by NVIDIA; on {host.name}: nvidia-smi -q, or reboot it"
        yield Finding("xid", host.name, text, fix, severity="warning")
    for index, gpu in enumerate(details.gpu_health):
        if what := [*gpu.repair_pending, *([f"action: {gpu.recovery}"] if gpu.recovery else [])]:
            text = f"GPU {index} needs a repair: {', '.join(what)}"
            yield Finding("gpu-reset-needed", host.name, text, _reset(host.name, [index]), severity="warning")
    if dead := [f"{links.total - links.active} of {links.total} on GPU {links.gpu}" for links in details.nvlinks
                if 0 < links.active < links.total]:  # fmt: skip
        text = f"NVLinks are down: {', '.join(dead[:MAX_NAMED])}"
        yield Finding(
            "nvlinks-down",
            host.name,
            text,
            f"on {host.name}: nvidia-smi nvlink -s; reset or reboot",
            severity="warning",
        )


def _fabric(host: str, gpus: tuple[GpuHealth, ...], manager: str) -> Iterator[Finding]:
    fix = f"on {host}: sudo systemctl restart nvidia-fabricmanager; its version must be that of the driver"
    waiting = [index for index, gpu in enumerate(gpus) if gpu.fabric_state not in FABRIC_WELL]
    failed = [index for index, gpu in enumerate(gpus) if gpu.fabric_status not in ("", "Success")]
    if waiting or failed:
        first = gpus[(waiting or failed)[0]]
        reason = f"{first.fabric_state}, {first.fabric_status}".strip(", ")
        text = f"GPU {_list(waiting or failed)} is not part of the NVSwitch fabric: {reason}"
        yield Finding("nvswitch-fabric", host, text, fix)
    elif manager == "failed":
        yield Finding("nvswitch-fabric", host, "nvidia-fabricmanager has failed", fix, severity="warning")


def same_gpus(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Iterator[Finding]:
    """GPUs and drivers that differ between hosts."""
    if inventory.accelerator != "nvidia":
        return
    kinds = {name: ", ".join(sorted({gpu.name for gpu in host.gpus})) for name, host in facts.items() if host.gpus}
    for name, kind, _, others in outliers(kinds):
        text = f"its GPUs are {kind}, those of {others}"
        fix = "one cluster for each kind: the GPU with the least memory and speed bounds all"
        yield Finding("gpus-differ", name, text, fix, severity="warning")
    drivers = {name: host.gpus[0].driver for name, host in facts.items() if host.gpus and host.gpus[0].driver}
    for name, driver, common, others in outliers(drivers):
        text = f"its driver is {driver}, that of {others}"
        fix = f"on {name}: install driver {common}" if common else "install one driver on all hosts"
        yield Finding("driver-differs", name, text, fix, severity="warning")


@each_host
def driver(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """A driver older than the CUDA of the image."""
    details = facts.details
    if inventory.accelerator != "nvidia" or details is None or details.image is None:
        return
    has, wants = (_major(version) for version in (details.cuda, details.image.cuda))
    if has and wants and has < wants:
        text = f"the driver knows CUDA {details.cuda}, the image was built for {details.image.cuda}"
        fix = f"on {host.name}: upgrade the driver, or name an image for CUDA {has}"
        yield Finding("driver-old", host.name, text, fix, severity="warning")


def _major(version: str) -> int:
    return number(version.partition(".")[0]) or 0
