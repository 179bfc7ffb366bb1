"""Which layouts there are for a model on these GPUs, which is taken, and what would help when none fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from vllm_cluster.backends import vllm
from vllm_cluster.fit.layouts import GpuPool, Layout, Model, Workload, evaluate

# The report proposes no more nodes, or more GPUs in one, than this.
MAX_NODES, MAX_GPUS_PER_NODE = 64, 8


@dataclass(frozen=True)
class FitReport:
    """The layouts, the best first; `recommended` is the first of them that fits.

    `suggestions` are what would fit when none does.
    """

    model: Model
    gpus: GpuPool
    workload: Workload
    layouts: tuple[Layout, ...]
    recommended: Layout | None
    suggestions: tuple[str, ...]


def min_gpus(model: Model, memory: int, workload: Workload) -> int:
    """The smallest number of GPUs that hold the weights and one request of the given context."""
    return -(-(model.weights.loaded + model.request(model.context(workload), workload.kv_bytes)) // memory)


def rule_of_thumb(weights: int) -> int:
    """P·4/(32/Q)·1.2 in bytes: what the weights hold and a fifth; it knows nothing of context or of requests."""
    return weights * 12 // 10


def report(model: Model, gpus: GpuPool, workload: Workload) -> FitReport:
    """Evaluate every layout. If no context is given, one shorter than the model's own is enough."""
    layouts = tuple(_layouts(model, gpus, workload))
    taken = next((layout for layout in layouts if layout.fits), None)
    if taken is None and not workload.context:
        taken = max(
            (layout for layout in layouts if layout.max_context), key=lambda one: one.max_context or 0, default=None
        )
    changes = () if taken else tuple(_changes(model, gpus, workload, layouts))
    return FitReport(model, gpus, workload, layouts, taken, changes)


def _layouts(model: Model, gpus: GpuPool, workload: Workload) -> Iterator[Layout]:
    """The fewest GPUs that hold it first; then all: TP = GPUs of a node and PP = nodes, and every other split.

    Each is one that `serve` can make: a cluster serves one model once.
    """
    nodes, total = gpus.nodes, sum(gpus.nodes)
    first = vllm.choose_parallelism(nodes, None, None)
    if small := smallest(model, gpus, workload):
        yield small
    yield evaluate(
        model,
        gpus,
        workload,
        first.tp,
        first.pp,
        why=f"the layout that serve takes without --tp and --pp: {'; '.join(first.reasons)}",
    )
    for tp in sorted(_divisors(total), reverse=True):
        if (tp, total // tp) == (first.tp, first.pp):
            continue
        if tp > min(nodes) and len(nodes) > 1:
            why = "no pipeline"
        elif tp > first.tp:
            why = "larger groups than every node holds evenly"
        else:
            why = "smaller TP groups: less all-reduce traffic; for hosts without NVLink or odd head counts"
        yield evaluate(model, gpus, workload, tp, total // tp, why=why)


def smallest(model: Model, gpus: GpuPool, workload: Workload) -> Layout | None:
    """The fewest GPUs that hold the model: some of the head's, or those of fewer nodes than there are."""
    nodes, size = gpus.nodes, gpus.nodes[0]
    for tp in _divisors(size) if len(nodes) > 1 else _divisors(size)[:-1]:
        what = "one node suffices" if tp == size else f"{tp} GPU{'s'[: tp > 1]} suffice{'s'[: tp < 2]}"
        small = evaluate(model, gpus, workload, tp, 1, why=f"{what}, the others stay idle: --tp {tp} --pp 1")
        if small.fits:
            return small
    for pp in range(2, len(nodes)) if len(set(nodes)) == 1 else ():
        why = f"{pp} of the {len(nodes)} nodes suffice, the others stay idle: --tp {size} --pp {pp}"
        some = evaluate(model, gpus, workload, size, pp, why=why)
        if some.fits:
            return some
    return None


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _changes(model: Model, gpus: GpuPool, workload: Workload, layouts: tuple[Layout, ...]) -> Iterator[str]:
    """The nearest changes with which it would fit, each by itself."""
    longest = max((layout.max_context or 0 for layout in layouts), default=0)
    if longest:
        at = next(layout for layout in layouts if layout.max_context == longest)
        yield f"a context of {longest} tokens: -- --max-model-len={longest} (TP={at.tp} × PP={at.pp})"
    together = max((layout.requests or 0 for layout in layouts), default=0)
    if together and workload.concurrency > 1:
        yield f"{together} request{'s'[: together > 1]} of that context at once"
    smaller = replace(workload, kv_dtype="fp8")
    if workload.kv_bytes > 1 and any(layout.fits for layout in _layouts(model, gpus, smaller)):
        yield "a KV cache in 8 bits: -- --kv-cache-dtype=fp8"
    count, size = len(gpus.nodes), min(gpus.nodes)
    more = [(size << n) for n in range(1, 4) if size << n <= MAX_GPUS_PER_NODE]
    bigger = [(in_node, (in_node,) * count) for in_node in more]
    bigger += [(size, (size,) * n) for n in range(count + 1, MAX_NODES + 1)]
    for in_node, nodes in sorted(bigger, key=lambda pair: sum(pair[1])):
        if _simplest(model, replace(gpus, nodes=nodes), workload).fits:
            yield f"{len(nodes)} node{'s'[: len(nodes) > 1]} of {in_node} such GPUs"
            return


def _simplest(model: Model, gpus: GpuPool, workload: Workload) -> Layout:
    """The largest groups within a node that the model can be split into, and as many stages as that makes."""
    total = sum(gpus.nodes)
    layouts = (
        evaluate(model, gpus, workload, tp, total // tp) for tp in sorted(_divisors(min(gpus.nodes)), reverse=True)
    )
    return next((layout for layout in layouts if not layout.problem), evaluate(model, gpus, workload, 1, total))
