"""Check whether a model fits, before anything is started or loaded."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm_cluster.kernel.errors import PreflightFailed, Unreachable, UsageError
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.observe import observe
from vllm_cluster.kernel.hosts.reach import connect_all
from vllm_cluster.kernel.hosts.secrets import read_references
from vllm_cluster.kernel.inventory.model import Host, Inventory
from vllm_cluster.kernel.laptop import expanded
from vllm_cluster.kernel.plan.desired import gpu_count, hcas
from vllm_cluster.kernel.plan.gpus import chosen
from vllm_cluster.kernel.text import count
from vllm_cluster.serving.fit.hub.model import read
from vllm_cluster.serving.fit.layouts import FitReport, GpuPool, Model, Workload, report
from vllm_cluster.serving.fit.lookup import supports_pp
from vllm_cluster.wire.inside import beginning

TOKEN_BYTES = 1000
MIN_GPU_MEMORY = 10**9
_SIZE = re.compile(r"(\d{1,6}(?:\.\d{1,6})?) ?([MGT])(I?)B?", re.ASCII)
_POWER = {"M": 2, "G": 3, "T": 4}
# Classes that vLLM has split into pipeline stages for years: asked of the image only where it can be asked.
SPLIT_INTO_STAGES = tuple(
    f"{name}ForCausalLM"
    for name in ("Llama", "Mistral", "Mixtral", "Qwen2", "Qwen2Moe", "Qwen3", "Qwen3Moe", "DeepseekV2", "DeepseekV3")
)


@dataclass(frozen=True)
class _HostGpus:
    """The GPUs, and whether the image's vLLM can split the model into stages; None where it was not asked."""

    gpus: GpuPool
    pipelines: bool | None


def fit(
    name: str,
    workload: Workload,
    emit: Emit,
    where: GpuPool | Inventory,
    *,
    dp: int = 1,
    experts: bool = False,
) -> FitReport:
    """The verdict on a model of the hub or of a folder here, on these GPUs or those of an inventory's hosts.

    `dp` engines share the requests, and `experts` are dealt over the GPUs.

    Raises:
        VclusterError: the model cannot be read, or a host not be asked.
    """
    inventory = where if isinstance(where, Inventory) else None
    emit(Event("phase", f"reading config and safetensors headers of {name}"))
    try:
        shape, weights = read(name, laptop_token(inventory))
    except Unreachable as error:
        # The caches of the hosts are not read here.
        if inventory:
            error.lines[-1] += "; serve reads the head's model cache and needs no hub"
        raise
    found = _look(where, shape.architecture, emit) if isinstance(where, Inventory) else _HostGpus(where, None)
    pipelines = found.pipelines
    if pipelines is None and shape.architecture in SPLIT_INTO_STAGES:
        pipelines = True
    return report(Model(name, weights, shape, pipelines), found.gpus, workload, dp=dp, experts=experts)


def laptop_token(inventory: Inventory | None) -> str | None:
    """The token with which this machine asks the hub: the inventory's, else where the hub's own tools look for it.

    It never goes to a host, nor to the hub that only an inventory names: both get what that inventory has.
    """
    given = host_token(inventory) if inventory else None
    elsewhere = inventory.environment.get("HF_ENDPOINT") if inventory else None
    if given or (elsewhere and elsewhere != os.environ.get("HF_ENDPOINT")):
        return given
    if os.environ.get("HF_TOKEN"):
        return os.environ["HF_TOKEN"].strip()
    home = Path(os.environ.get("HF_HOME") or expanded("~/.cache/huggingface"))
    path = Path(os.environ.get("HF_TOKEN_PATH") or home / "token")
    try:
        return beginning(path, TOKEN_BYTES).decode().strip()
    except (OSError, ValueError):
        return None


def host_token(inventory: Inventory) -> str | None:
    """The token that a host may have: the inventory's alone."""
    if not inventory.hf_token:
        return None
    return read_references(inventory, {"hf-token": inventory.hf_token})["hf-token"]


def _look(inventory: Inventory, architecture: str, emit: Emit) -> _HostGpus:
    with connect_all(inventory, emit) as fleet:
        fleet.without_lease()
        emit(Event("phase", f"inspecting {count(len(inventory.hosts), 'host')}"))
        facts = fleet.all(lambda connection: observe(inventory, connection))
        pool = gpu_pool(inventory, facts)
        for name, found in facts.items():
            if unified := [gpu.memory_mib for gpu in found.gpus if gpu.unified]:
                whole = found.memory_bytes / 2**30
                text = f"its GPUs share the host's memory: {unified[0] / 1024:.0f} GiB of {whole:.0f} count"
                emit(Event("note", f"{text}, the rest is for the system", name))
        pipelines = None
        if len(pool.nodes) > 1 and not facts[inventory.head_name].docker.problem:
            emit(Event("phase", f"checking whether the image's vLLM supports pipeline parallelism for {architecture}"))
            head = inventory.head_name
            pipelines = supports_pp(fleet.connections[head], facts[head], inventory, architecture)
    return _HostGpus(pool, pipelines)


def gpu_pool(inventory: Inventory, facts: Mapping[str, HostFacts]) -> GpuPool:
    """Return the GPUs of the hosts that were looked at, in the inventory's order."""
    hosts = {name: host for name, host in inventory.hosts.items() if name in facts}
    nodes = tuple(gpu_count(host, facts[name], inventory.accelerator) for name, host in hosts.items())
    memory = min(gpu_memory(inventory, host, facts[name]) for name, host in hosts.items())
    return GpuPool(nodes, memory, all(hcas(host, facts[name]) for name, host in hosts.items()))


def gpu_memory(inventory: Inventory, host: Host, facts: HostFacts) -> int:
    """Bytes of the host's smallest GPU; logical GPUs share the host's memory."""
    count = gpu_count(host, facts, inventory.accelerator)
    if inventory.accelerator == "cpu":
        found = facts.memory_bytes // count if count else 0
    else:
        found = min((gpu.memory_mib for gpu in chosen(host, facts)), default=0) << 20
    if not found:
        hint = "vcluster fit MODEL --gpus NUMBER --gpu-memory SIZE"
        raise PreflightFailed(f"{facts.host}: no GPU reports its memory size", hint=hint)
    return found


def gpu_memory_bytes(text: str) -> int:
    """Read `80GB` or `79.6GiB`."""
    match = _SIZE.fullmatch(text.strip().upper())
    found = round(float(match[1]) * (1024 if match[3] else 1000) ** _POWER[match[2]]) if match else 0
    if found < MIN_GPU_MEMORY:
        raise UsageError(f"--gpu-memory {text} is not a size of 1 GB or more", hint="write the unit: 80GB or 79.6GiB")
    return found
