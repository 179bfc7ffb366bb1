"""What each way to lay a model over the GPUs needs and leaves, which is taken, and what would help when none fits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from vllm_cluster.kernel.backends import BACKENDS, vllm
from vllm_cluster.kernel.backends.seam import Degrees
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.serving.fit.kv_cache import BATCHED, BLOCK, STEPS, Layer
from vllm_cluster.serving.fit.model_config import ModelConfig
from vllm_cluster.serving.fit.weights import Weights

# vLLM's default for --gpu-memory-utilization, of the total memory.
UTILISATION = 0.92
# CUDA graphs, NCCL, the driver's share: Llama 3.1 8B on an H200 left 0.2 to 0.5 GiB for them.
FIXED = 1 << 30
SEQUENCES = 1024  # sampled at once by default
MAX_NODES, MAX_GPUS_PER_NODE = 64, 8  # of what the report proposes
# From this vLLM on, blocks of quantised experts are cut smaller where a GPU's share is not a multiple of them.
CUTS_BLOCKS, CUT_BLOCK = (0, 32), 32
RELEASED = (0, 33)
KV_DTYPES = {"auto": 2, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}


@dataclass(frozen=True)
class GpuPool:
    """The GPUs there are: how many on each node, the bytes of the smallest, and whether RDMA joins all nodes."""

    nodes: tuple[int, ...]
    memory_bytes: int
    rdma: bool | None = None


@dataclass(frozen=True)
class Workload:
    """What shall be served: requests at once, each of so many tokens; `context` 0 is the model's own."""

    context: int = 0
    concurrency: int = 1
    kv_dtype: str = "auto"

    @property
    def kv_bytes(self) -> int:
        """Bytes of an element in the KV cache."""
        return KV_DTYPES[self.kv_dtype]


@dataclass(frozen=True)
class Model:
    """What is known of a model, and the vLLM that serves it; `pipelines` is whether it can split it into stages."""

    name: str
    weights: Weights
    shape: ModelConfig
    pipelines: bool | None = None
    vllm: tuple[int, ...] = RELEASED

    def context(self, workload: Workload) -> int:
        """Tokens of a request."""
        return workload.context or self.shape.context

    def taken(self, workload: Workload) -> Workload:
        """The workload with the dtype that vLLM takes for the KV cache of this model."""
        return replace(workload, kv_dtype=self.shape.kv_dtype) if workload.kv_dtype == "auto" else workload

    def request(self, tokens: int, kv_bytes: int) -> int:
        """Bytes of KV cache for one request, over all GPUs at TP=1."""
        return sum(layer.held(tokens, 1, kv_bytes) for layer in self.shape.layers)


@dataclass(frozen=True)
class PipelineStage:
    """One GPU of one stage: bytes of weights, for computing, and left for the KV cache of its layers."""

    weights: int
    reserve: int
    left: int
    layers: tuple[tuple[Layer, int], ...]
    steps: int = STEPS

    def request(self, tokens: int, tp: int, kv_bytes: int) -> int:
        """Bytes that one request takes here."""
        return sum(layer.held(tokens, tp, kv_bytes, self.steps) * count for layer, count in self.layers)


@dataclass(frozen=True)
class Layout:
    """A layout judged: `dp` engines of TP × PP, with experts dealt whole over TP × DP (`ep`) or split.

    The sizes are those of the fullest GPU. `problem` is why it is impossible; `max_context` is the longest that fits,
    `requests` how many of the requested context do, `kv_cache_tokens` how many tokens fit in all engines; None where
    it is impossible.
    """

    tp: int
    pp: int
    dp: int
    ep: bool
    reason: str
    problem: str
    weights_bytes: int
    activation_bytes: int
    kv_cache_bytes: int
    max_context: int | None
    requests: int | None
    kv_cache_tokens: int | None
    fits: bool
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its degrees, for people."""
        dealt = f" × DP={self.dp}" if self.dp > 1 else ""
        return f"TP={self.tp} × PP={self.pp}{dealt}{' with EP' if self.ep else ''}"


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


def split_problem(shape: ModelConfig, degrees: Degrees) -> str:
    """Why vLLM would refuse this split of a model, in one sentence; empty when it would not."""
    tp, pp = degrees.tp, degrees.pp
    for count, what in shape.divided:
        if count % tp:
            return f"TP={tp} does not divide {what}"
    for heads in sorted({layer.heads for layer in shape.layers if layer.heads}):
        if heads % tp and tp % heads:
            return f"TP={tp} and its {heads} KV heads do not divide one another"
    if pp > len(shape.layers):
        return f"PP={pp} is more than its {len(shape.layers)} layers"
    if degrees.experts and not shape.experts_used:
        return "it has no experts: leave out --ep"
    return ""


def evaluate(
    model: Model,
    gpus: GpuPool,
    workload: Workload,
    tp: int,
    pp: int,
    *,
    dp: int = 1,
    experts: bool = False,
    why: str = "",
) -> Layout:
    """What a layout needs and gives; with data parallel (`dp`), of all its engines together."""
    degrees, workload = Degrees(tp, pp, dp, experts), model.taken(workload)
    problem, notes = _problem(model, gpus, degrees), tuple(_notes(model, gpus, degrees))
    stages = _stages(model, gpus, degrees) if not problem else ()
    fullest = max(stages, key=lambda stage: stage.weights, default=PipelineStage(0, 0, 0, ()))
    context = requests = tokens = None
    fits = bool(stages) and min(stage.left for stage in stages) >= 0
    if stages:
        limit = model.context(workload)
        requests = dp * _requests(stages, tp, workload, limit)
        tokens = dp * _requests(stages, tp, workload, limit, unit=limit)
        # A request is in one engine: the fullest has its share, rounded up.
        each = replace(workload, concurrency=-(-workload.concurrency // dp))
        context = _longest(stages, tp, each, max(limit, model.shape.context))
        fits = requests >= workload.concurrency
    left = min((stage.left for stage in stages), default=0)
    sizes = (fullest.weights, fullest.reserve, left)
    return Layout(tp, pp, dp, experts, why, problem, *sizes, context, requests, tokens, fits, notes)


def _problem(model: Model, gpus: GpuPool, degrees: Degrees) -> str:
    found = split_problem(model.shape, degrees)
    if not found and degrees.pp > 1 and model.pipelines is False:
        found = f"the image's vLLM cannot split {model.shape.architecture} into stages (no SupportsPP)"
    try:
        if degrees.dp > 1 and not found:
            BACKENDS["mp"].take({f"host {number}": count for number, count in enumerate(gpus.nodes, 1)}, degrees)
    except UsageError as error:
        return error.message
    return found or next(_uneven(model, degrees, cut=False), "")


def _uneven(model: Model, degrees: Degrees, *, cut: bool) -> Iterator[str]:
    """Weights whose share on a GPU is not a multiple of their quantisation block: those that vLLM cuts, or others."""
    for one in model.shape.blocks:
        parts = degrees.tp if not one.experts else 1 if degrees.experts else degrees.tp * degrees.dp
        if parts == 1 or one.size % (parts * one.block) == 0:
            continue
        part = math.gcd(one.block, one.size // parts, model.shape.hidden) if one.size % parts == 0 else 0
        if cut is (one.experts and part >= CUT_BLOCK and model.vllm >= CUTS_BLOCKS):
            at = f"TP={degrees.tp}" + (f" × DP={degrees.dp}" if one.experts and degrees.dp > 1 else "")
            text = f"{one.name} ({one.size}) at {at} is not a multiple of the quantisation block {one.block}"
            yield f"{text}; --ep keeps experts whole" if one.experts else text


def of_experts(shape: ModelConfig, degrees: Degrees) -> Fraction:
    """The part of the experts that a GPU holds: they are split over TP × DP, or dealt whole (`experts`)."""
    over = degrees.tp * degrees.dp
    return (
        Fraction(-(-shape.experts // over), shape.experts) if degrees.experts and shape.experts else Fraction(1, over)
    )


def _notes(model: Model, gpus: GpuPool, degrees: Degrees) -> Iterator[str]:
    tp, pp, dp = degrees.tp, degrees.pp, degrees.dp
    for text in _uneven(model, degrees, cut=True):
        yield f"{text}; without it vLLM cuts the blocks smaller, which its Triton kernels alone can take"
    if dp > 1 and model.shape.experts_used:
        yield f"each of the {dp} engines has a KV cache of its own: a request takes that of one"
    elif dp > 1:
        yield f"it has no experts: each of the {dp} engines holds the whole model, and they share the requests"
    heads = max((layer.heads for layer in model.shape.layers), default=0)
    if heads == 1 < tp:
        # Not in the windows beside compressed attention.
        packed = any(layer.rows for layer in model.shape.layers)
        advice = "" if packed else f"; -- --decode-context-parallel-size={tp} divides it"
        yield f"every GPU holds the whole KV cache of its layers{advice}"
    elif 0 < heads < tp:
        yield f"{heads} KV heads: each is held by {tp // heads} GPUs"
    if pp > 1 and len(model.shape.layers) % pp:
        sizes = {end - begin for begin, end in stage_bounds(len(model.shape.layers), pp)}
        yield f"stages of {min(sizes)} and {max(sizes)} layers"
    if len(gpus.nodes) > 1 and tp > min(gpus.nodes):
        known = {None: "RDMA unknown", True: "RDMA found", False: "no RDMA found"}
        yield f"TP spans hosts: each layer runs an all-reduce over the network; needs RDMA; {known[gpus.rdma]}"


def stage_bounds(layers: int, pp: int) -> list[tuple[int, int]]:
    """First and past-the-last layer of every stage, as vLLM deals them: what is over goes to the later stages,
    but not to the last, which has the head to hold."""
    sizes = [layers // pp] * pp
    for index in range(2, layers % pp + 2):
        sizes[-index] += 1
    ends = [sum(sizes[: index + 1]) for index in range(pp)]
    return list(zip([0, *ends], ends, strict=False))


def _stages(model: Model, gpus: GpuPool, degrees: Degrees) -> tuple[PipelineStage, ...]:
    budget, part = int(UTILISATION * gpus.memory_bytes), of_experts(model.shape, degrees)
    stages = []
    for begin, end in stage_bounds(len(model.shape.layers), degrees.pp):
        weights = model.weights.on_stage(begin, end, degrees.tp, part)
        reserve = FIXED + _activations(model.shape, degrees, last=end == len(model.shape.layers))
        layers = tuple(Counter(model.shape.layers[begin:end]).items())
        stages.append(PipelineStage(weights, reserve, budget - weights - reserve, layers, STEPS - 1 + degrees.pp))
    return tuple(stages)


def _activations(shape: ModelConfig, degrees: Degrees, *, last: bool) -> int:
    """The peak of one step, in 16 bits: residuals and the widest layer of a full batch, or on the last stage the
    logits of all sequences with their copy in 32 bits. An estimate, near what vLLM measured on Llama.

    With data parallel the experts get the tokens of all engines. Where they are dealt, a GPU is taken to get as many
    as one engine has: its experts may be asked for more than others.
    """
    tp, dp = degrees.tp, degrees.dp if shape.experts_used else 1
    expert = 2 * shape.expert if degrees.experts else 2 * shape.expert // tp
    routed = shape.experts_used * ((1 if degrees.experts else dp) * shape.hidden + expert) + (dp - 1) * shape.hidden
    step = BATCHED * 2 * (4 * shape.hidden + max(3 * shape.mlp // tp, routed))
    return max(step, SEQUENCES * shape.vocab * 6 if last else 0)


def _requests(stages: tuple[PipelineStage, ...], tp: int, workload: Workload, context: int, unit: int = 1) -> int:
    """How many requests of that context fit beside each other, in units of a part of one."""
    needs = [(stage.left, stage.request(context, tp, workload.kv_bytes)) for stage in stages]
    return min((max(0, left) * unit // need for left, need in needs if need), default=0)


def _longest(stages: tuple[PipelineStage, ...], tp: int, workload: Workload, limit: int) -> int:
    """The longest context at which the requested concurrency fits, in whole blocks; 0 when none does."""
    if _requests(stages, tp, workload, limit) >= workload.concurrency:
        return limit
    low, high = 0, limit // BLOCK + 1
    while high - low > 1:
        middle = (low + high) // 2
        if _requests(stages, tp, workload, middle * BLOCK) >= workload.concurrency:
            low = middle
        else:
            high = middle
    return low * BLOCK


def min_gpus(model: Model, memory: int, workload: Workload) -> int:
    """The smallest number of GPUs that hold the weights and one request of the given context."""
    return -(-(model.weights.loaded + model.request(model.context(workload), workload.kv_bytes)) // memory)


def report(model: Model, gpus: GpuPool, workload: Workload, *, dp: int = 1, experts: bool = False) -> FitReport:
    """Evaluate every layout of so many engines. If no context is given, one shorter than the model's own is enough.

    Raises:
        UsageError: there are fewer GPUs than engines.
    """
    workload = model.taken(workload)
    layouts = tuple(_layouts(model, gpus, workload, dp, experts=experts))
    taken = next((layout for layout in layouts if layout.fits), None)
    if taken is None and not workload.context:
        taken = max(
            (layout for layout in layouts if layout.max_context), key=lambda one: one.max_context or 0, default=None
        )
    changes = () if taken else tuple(_changes(model, gpus, workload, layouts))
    return FitReport(model, gpus, workload, layouts, taken, changes)


def _layouts(model: Model, gpus: GpuPool, workload: Workload, dp: int, *, experts: bool) -> Iterator[Layout]:
    """The fewest GPUs that hold it first; then all: TP = GPUs of a node and PP = nodes, and every other split.

    Each is one that `serve` can make: a cluster serves one model once.
    """
    nodes, each = gpus.nodes, sum(gpus.nodes) // dp
    judged = partial(evaluate, model, gpus, workload, dp=dp, experts=experts)
    if dp > 1:
        first = vllm.choose_engines(nodes, None, None, dp, where="the GPUs")
    else:
        first = vllm.choose_parallelism(nodes, None, None)
        if small := smallest(model, gpus, workload, experts=experts):
            yield small
    without = "the layout that serve takes without --tp and --pp"
    yield judged(first.tp, first.pp, why=f"{without}: {'; '.join(first.reasons)}")
    for tp in sorted(_divisors(each), reverse=True):
        if (tp, each // tp) == (first.tp, first.pp):
            continue
        if dp > 1:
            why = "larger TP groups" if tp > first.tp else "smaller TP groups: less all-reduce traffic"
        elif tp > min(nodes) and len(nodes) > 1:
            why = "no pipeline"
        elif tp > first.tp:
            why = "larger groups than every node holds evenly"
        else:
            why = "smaller TP groups: less all-reduce traffic; for hosts without NVLink or odd head counts"
        yield judged(tp, each // tp, why=why)


def smallest(model: Model, gpus: GpuPool, workload: Workload, *, experts: bool = False) -> Layout | None:
    """The fewest GPUs that hold the model: some of the head's, or those of fewer nodes than there are."""
    nodes, size = gpus.nodes, gpus.nodes[0]
    for tp in _divisors(size) if len(nodes) > 1 else _divisors(size)[:-1]:
        what = "one node suffices" if tp == size else f"{tp} GPU{'s'[: tp > 1]} suffice{'s'[: tp < 2]}"
        why = f"{what}, the others stay idle: --tp {tp} --pp 1"
        small = evaluate(model, gpus, workload, tp, 1, experts=experts, why=why)
        if small.fits:
            return small
    for pp in range(2, len(nodes)) if len(set(nodes)) == 1 else ():
        why = f"{pp} of the {len(nodes)} nodes suffice, the others stay idle: --tp {size} --pp {pp}"
        some = evaluate(model, gpus, workload, size, pp, experts=experts, why=why)
        if some.fits:
            return some
    return None


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _changes(model: Model, gpus: GpuPool, workload: Workload, layouts: tuple[Layout, ...]) -> Iterator[str]:
    """The nearest changes with which it would fit, each by itself."""
    dp, experts = layouts[0].dp, layouts[0].ep
    longest = max((layout.max_context or 0 for layout in layouts), default=0)
    if longest:
        at = next(layout for layout in layouts if layout.max_context == longest)
        yield f"a context of {longest} tokens: -- --max-model-len={longest} ({at.name})"
    together = max((layout.requests or 0 for layout in layouts), default=0)
    if together and workload.concurrency > 1:
        yield f"{together} request{'s'[: together > 1]} of that context at once"
    smaller = replace(workload, kv_dtype="fp8")
    if workload.kv_bytes > 1 and any(one.fits for one in _layouts(model, gpus, smaller, dp, experts=experts)):
        yield "a KV cache in 8 bits: -- --kv-cache-dtype=fp8"
    count, size = len(gpus.nodes), min(gpus.nodes)
    more = [(size << n) for n in range(1, 4) if size << n <= MAX_GPUS_PER_NODE]
    bigger = [(in_node, (in_node,) * count) for in_node in more]
    bigger += [(size, (size,) * n) for n in range(count + 1, MAX_NODES + 1)]
    for in_node, nodes in sorted(bigger, key=lambda pair: sum(pair[1])):
        if _simplest(model, replace(gpus, nodes=nodes), workload, dp, experts=experts).fits:
            yield f"{len(nodes)} node{'s'[: len(nodes) > 1]} of {in_node} such GPUs"
            return


def _simplest(model: Model, gpus: GpuPool, workload: Workload, dp: int, *, experts: bool) -> Layout:
    """The largest groups within a node that the model can be split into, and as many stages as that makes."""
    each = sum(gpus.nodes) // dp
    judged = partial(evaluate, model, gpus, workload, dp=dp, experts=experts)
    sizes = [tp for tp in sorted(_divisors(min(gpus.nodes)), reverse=True) if each % tp == 0 and tp <= each]
    layouts = (judged(tp, each // tp) for tp in sizes)
    return next((layout for layout in layouts if not layout.problem), judged(1, max(1, each)))
