"""`vcluster fit`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.terminal.completion import complete_models
from vllm_cluster.kernel.terminal.options import InventoryPath, Json
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.kernel.terminal.settings import SETTINGS
from vllm_cluster.serving.serve.verb import Dp, Ep

if TYPE_CHECKING:
    from vllm_cluster.serving.fit.layouts import GpuPool, Workload

EXIT_NOTHING_FITS = 3
# More than any cluster has, and than a host.
MAX_NODES, MAX_GPUS = 256, 64

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL|NAME",
        help="A repository on the hub, a folder here, or a name that is served.",
        autocompletion=complete_models,
    ),
]
Context = Annotated[
    int,
    typer.Option(
        "--context", metavar="TOKENS", min=0, max=1 << 30, help="Tokens of a request. Default: the model's context."
    ),
]
Concurrency = Annotated[
    int,
    typer.Option(
        "--concurrency", metavar="NUMBER", min=1, max=1 << 20, help="Concurrent requests of --context tokens."
    ),
]
KvCacheDtype = Annotated[str, typer.Option("--kv-cache-dtype", metavar="TYPE", help="As for vLLM: auto, fp8, …")]
GpuCount = Annotated[
    str,
    typer.Option("--gpus", metavar="[HOSTSx]NUMBER", help="With --gpu-memory: 8, or 2x8 for two hosts with 8 each."),
]
GpuMemory = Annotated[
    str | None,
    typer.Option("--gpu-memory", metavar="SIZE", help="Memory of a GPU (80GB, 79.6GiB) in place of asking hosts."),
]


def fit(
    model: Model = None,
    inventory: InventoryPath = None,
    context: Context = 0,
    concurrency: Concurrency = 1,
    kv_cache_dtype: KvCacheDtype = "auto",
    gpus: GpuCount = "",
    gpu_memory: GpuMemory = None,
    dp: Dp = None,
    ep: Ep = False,
    as_json: Json = False,
) -> None:
    """Check whether a model fits, in which layouts and context."""
    with Session(inventory, as_json=as_json) as session:
        from vllm_cluster.features.fit import served
        from vllm_cluster.features.fit.render import show_verdict, verdict_document
        from vllm_cluster.kernel.inventory.model import Inventory

        if model is None:
            raise UsageError("MODEL is missing", hint="vcluster fit meta-llama/Llama-3.1-8B-Instruct")
        workload = _workload(context, concurrency, kv_cache_dtype)
        where = _gpus(gpus, gpu_memory) or session.load()
        from vllm_cluster.serving.fit import fit as fit_action

        asked = served.served_as(model, where, session.emit) if isinstance(where, Inventory) else None
        if asked:
            model, dp, ep = asked.model, dp or asked.dp, ep or asked.expert_parallel
            dtype = served.kv_cache_dtype_of(asked) if kv_cache_dtype == "auto" else kv_cache_dtype
            workload = _workload(context or served.context_of(asked), concurrency, dtype)
        found = fit_action.fit(model, workload, session.progress, where, dp=dp or 1, experts=ep)
        session.show(lambda: verdict_document(found), lambda: show_verdict(found, color=SETTINGS.color))
        if not found.recommended:
            raise SystemExit(EXIT_NOTHING_FITS)


def _workload(context: int, concurrency: int, kv_dtype: str) -> Workload:
    from vllm_cluster.serving.fit.layouts import KV_DTYPES, Workload

    if kv_dtype not in KV_DTYPES:
        raise UsageError(f"--kv-cache-dtype {kv_dtype} is not known", hint=f"one of {', '.join(KV_DTYPES)}")
    return Workload(context, concurrency, kv_dtype)


def _gpus(gpus: str, memory: str | None) -> GpuPool | None:
    from vllm_cluster.serving.fit.fit import gpu_memory_bytes
    from vllm_cluster.serving.fit.layouts import GpuPool

    if memory is None:
        if gpus:
            raise UsageError("--gpus needs --gpu-memory", hint="--gpus 2x8 --gpu-memory 80GB")
        return None
    found = re.fullmatch("(?:([0-9]{1,3})x)?([0-9]{1,2})", gpus or "1")
    nodes, of_each = (int(found[1] or 1), int(found[2])) if found else (0, 0)
    if not (1 <= nodes <= MAX_NODES and 1 <= of_each <= MAX_GPUS):
        raise UsageError(f"--gpus must be a number of GPUs, or 2x8 for two hosts, got {gpus!r}", hint="--gpus 2x8")
    return GpuPool((of_each,) * nodes, gpu_memory_bytes(memory))
