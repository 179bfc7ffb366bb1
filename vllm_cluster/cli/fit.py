"""`vcluster fit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from vllm_cluster.cli.options import InventoryPath, Json
from vllm_cluster.cli.session import SETTINGS, Session
from vllm_cluster.core.errors import UsageError

if TYPE_CHECKING:
    from vllm_cluster.fit.layouts import Gpus, Wish

EXIT_NOTHING_FITS = 3
LEAST_MEMORY = 10**9


def fit(
    model: Annotated[str | None, typer.Argument(help="A repository on the hub, or a folder here.")] = None,
    inventory: InventoryPath = None,
    context: Annotated[
        int, typer.Option("--context", min=0, max=1 << 30, help="Tokens of a request; else the model's own context.")
    ] = 0,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, max=1 << 20, help="Such requests at once.")] = 1,
    kv_cache_dtype: Annotated[str, typer.Option("--kv-cache-dtype", help="As vLLM's option: auto, fp8, …")] = "auto",
    gpus: Annotated[
        int | None, typer.Option("--gpus", min=1, max=64, help="GPUs of a node, with --gpu-memory.", show_default=False)
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, max=256, help="Nodes, with --gpu-memory.", show_default=False)
    ] = None,
    gpu_memory: Annotated[
        str | None, typer.Option("--gpu-memory", help="80GB or 79.6GiB: these, and ask no host.", show_default=False)
    ] = None,
    params: Annotated[
        str | None, typer.Option("--params", help="405B: reckon with these, ask no hub.", show_default=False)
    ] = None,
    bits: Annotated[int, typer.Option("--bits", min=1, max=64, help="Bits of each parameter.")] = 16,
    as_json: Json = False,
) -> None:
    """Tell whether a model fits, in which layouts, with how much context. Exits with 3 when it does not."""

    def action(session: Session) -> None:
        import json

        from vllm_cluster.cli.render.fit import show_verdict, verdict_document

        if (model is None) == (params is None):
            raise UsageError("give a model, or --params", hint="vcluster fit meta-llama/Llama-3.1-8B-Instruct")
        wish, given = _wish(context, concurrency, kv_cache_dtype), _gpus(gpus, nodes, gpu_memory)
        if params is not None:
            from vllm_cluster.fit.verdict import of_parameters, verdict

            found = verdict(of_parameters(_size("--params", params), bits), given, wish)
        else:
            from vllm_cluster.actions import fit as fit_action

            found = fit_action.fit(str(model), wish, session.progress, gpus=given, load=session.load)
        session.finish()
        if session.as_json:
            print(json.dumps(verdict_document(found)))
        else:
            show_verdict(found, color=SETTINGS.color)
        if found.gpus and not found.taken:
            raise SystemExit(EXIT_NOTHING_FITS)

    Session(inventory, as_json=as_json).run(action)


def _wish(context: int, concurrency: int, kv_dtype: str) -> Wish:
    from vllm_cluster.fit.layouts import KV_DTYPES, Wish

    if kv_dtype not in KV_DTYPES:
        raise UsageError(f"--kv-cache-dtype {kv_dtype} is not known", hint=f"one of {', '.join(KV_DTYPES)}")
    return Wish(context, concurrency, kv_dtype)


def _gpus(gpus: int | None, nodes: int | None, memory: str | None) -> Gpus | None:
    from vllm_cluster.fit.layouts import Gpus

    if memory is None:
        if gpus or nodes:
            raise UsageError("--gpus and --nodes need --gpu-memory", hint="--gpus 8 --nodes 2 --gpu-memory 80GB")
        return None
    found = _size("--gpu-memory", memory)
    if found < LEAST_MEMORY:
        raise UsageError(f"--gpu-memory {memory} is less than 1 GB", hint="say the unit: 80GB, or 79.6GiB")
    return Gpus((gpus or 1,) * (nodes or 1), found)


def _size(option: str, text: str) -> int:
    from vllm_cluster.fit.numbers import size

    try:
        return size(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}", hint="such as 405B for parameters, 80GB or 79.6GiB for memory") from None
