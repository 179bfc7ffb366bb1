"""Whether vLLM starts on GPUs that others use too."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_cluster.fit.layouts import UTILISATION
from vllm_cluster.fit.weights import gib
from vllm_cluster.text import last_value

OPTION = "--gpu-memory-utilization"


@dataclass(frozen=True)
class Beside:
    """A GPU that a rank would share with others; bytes. `share` is the most of it that vLLM can take beside `holders`.

    `find_out` is the command that shows whose those processes are.
    """

    gpu: int
    total: int
    free: int
    share: float
    holders: str
    find_out: str


def utilisation(extra: Sequence[str], names: Collection[str], values: Mapping[str, Any]) -> float | None:
    """The share of a GPU that vLLM takes, by what its own parser read or by the words; None where it is not known.

    `names` are those of the options among the words.
    """
    value = values.get("gpu_memory_utilization")
    if "kv_cache_memory_bytes" in names or (value is None and "config" in names):
        return None
    try:
        return float(value or last_value(extra, OPTION) or UTILISATION)
    except (TypeError, ValueError):
        return None


def too_little(model: str, gpus: Sequence[Beside], share: float | None, needed: float) -> Iterator[tuple[str, str]]:
    """Why vLLM would end at once on GPUs of a host, and what to do: it starts only where all of its share is free.

    `needed` are the bytes of a GPU without which the weights do not fit.
    """
    short = [gpu for gpu in gpus if share is not None and share * gpu.total > gpu.free]
    if share is None or not short:
        return
    there = ", ".join(f"GPU {gpu.gpu} has {gib(gpu.free)} beside {gpu.holders}" for gpu in short)
    text = f"{model} does not fit: vLLM takes {gib(share * short[0].total)} of a GPU ({OPTION} {share:g}), and {there}"
    most = min(short, key=lambda gpu: gpu.share)
    beside = f"\nor vcluster serve {model} -- {OPTION} {most.share:g}" if most.share * most.total > needed else ""
    yield text, f"{short[0].find_out}, then end it{beside}"
