"""The GPUs of the hosts, by which a recipe of vLLM's book chooses its layout and flags; changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_cluster.kernel.assess import require_name
from vllm_cluster.kernel.errors import PreflightFailed
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.hosts.observe import observe
from vllm_cluster.kernel.hosts.reach import connect_all
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.desired import gpu_count
from vllm_cluster.kernel.plan.gpus import chosen
from vllm_cluster.kernel.text import count
from vllm_cluster.serving.fit.fit import gpu_pool
from vllm_cluster.serving.fit.layouts import GpuPool


def recipe_hosts(
    inventory: Inventory, emit: Emit, hosts: Sequence[str] = (), *, runtime: Runtime = SYSTEM
) -> tuple[GpuPool, str]:
    """Return the GPUs of these hosts, or of all, and the name of the GPUs: "cpu" for emulated ones, empty for unlike.

    Raises:
        VclusterError: a host cannot be asked, or has no GPU.
    """
    require_name(inventory, list(hosts))
    names = [name for name in inventory.hosts if not hosts or name in hosts]
    with connect_all(inventory, emit, runtime=runtime) as fleet:
        emit(Event("phase", f"inspecting {count(len(names), 'host')}"))
        facts = fleet.all(lambda connection: observe(inventory, connection), names)
    for name in names:
        if not gpu_count(inventory.hosts[name], facts[name], inventory.accelerator):
            raise PreflightFailed(f"{name}: no GPU was found", hint="vcluster check")
    pool = gpu_pool(inventory, facts)
    if inventory.accelerator == "cpu":
        return pool, "cpu"
    kinds = {gpu.name for name, found in facts.items() for gpu in chosen(inventory.hosts[name], found)}
    return pool, kinds.pop() if len(kinds) == 1 else ""
