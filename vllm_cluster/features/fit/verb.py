"""`vcluster fit`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.terminal.completion import complete_models
from vllm_cluster.kernel.terminal.options import InventoryPath, Json
from vllm_cluster.kernel.terminal.session import SETTINGS, Session
from vllm_cluster.serving.serve.verb import Dp, Ep

if TYPE_CHECKING:
    from vllm_cluster.serving.fit.layouts import GpuPool, Workload

EXIT_NOTHING_FITS = 3
MIN_GPU_MEMORY = 10**9
_SIZE = re.compile(r"(\d{1,6}(?:\.\d{1,6})?) ?([MGT])(I?)B?", re.ASCII)
_POWER = {"M": 2, "G": 3, "T": 4}


Model = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="A repository on the hub, or a folder here.", autocompletion=complete_models),
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
    int | None, typer.Option("--gpus", metavar="NUMBER", min=1, max=64, help="GPUs of a host, with --gpu-memory.")
]
Nodes = Annotated[
    int | None, typer.Option("--nodes", metavar="NUMBER", min=1, max=256, help="Number of hosts, with --gpu-memory.")
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
    gpus: GpuCount = None,
    nodes: Nodes = None,
    gpu_memory: GpuMemory = None,
    dp: Dp = None,
    ep: Ep = False,
    as_json: Json = False,
) -> None:
    """Check whether a model fits, in which layouts and context."""
    with Session(inventory, as_json=as_json) as session:
        from vllm_cluster.features.fit.render import show_verdict, verdict_document

        if model is None:
            raise UsageError("MODEL is missing", hint="vcluster fit meta-llama/Llama-3.1-8B-Instruct")
        workload, given = _workload(context, concurrency, kv_cache_dtype), _gpus(gpus, nodes, gpu_memory)
        from vllm_cluster.serving.fit import fit as fit_action

        found = fit_action.fit(model, workload, session.progress, given or session.load(), dp=dp or 1, experts=ep)
        session.show(lambda: verdict_document(found), lambda: show_verdict(found, color=SETTINGS.color))
        if not found.recommended:
            raise SystemExit(EXIT_NOTHING_FITS)


def _workload(context: int, concurrency: int, kv_dtype: str) -> Workload:
    from vllm_cluster.serving.fit.layouts import KV_DTYPES, Workload

    if kv_dtype not in KV_DTYPES:
        raise UsageError(f"--kv-cache-dtype {kv_dtype} is not known", hint=f"one of {', '.join(KV_DTYPES)}")
    return Workload(context, concurrency, kv_dtype)


def _gpus(gpus: int | None, nodes: int | None, memory: str | None) -> GpuPool | None:
    from vllm_cluster.serving.fit.layouts import GpuPool

    if memory is None:
        if gpus or nodes:
            raise UsageError("--gpus and --nodes need --gpu-memory", hint="--gpus 8 --nodes 2 --gpu-memory 80GB")
        return None
    return GpuPool((gpus or 1,) * (nodes or 1), gpu_memory_bytes(memory))


def gpu_memory_bytes(text: str) -> int:
    """Read `80GB` or `79.6GiB`."""
    match = _SIZE.fullmatch(text.strip().upper())
    found = round(float(match[1]) * (1024 if match[3] else 1000) ** _POWER[match[2]]) if match else 0
    if found < MIN_GPU_MEMORY:
        raise UsageError(f"--gpu-memory {text} is not a size of 1 GB or more", hint="write the unit: 80GB or 79.6GiB")
    return found
