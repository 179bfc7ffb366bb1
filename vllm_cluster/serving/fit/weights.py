"""How much the weights hold, and on which stage of a pipeline each of them lies."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from vllm_cluster.serving.fit.model_config import ModelConfig
from vllm_cluster.wire.safetensors import Tensor

# What of a tensor is on a rank of a TP group: its part, all of it, or the part of an expert.
Held = Literal["shared", "whole", "experts"]
# Dtype, place, what of it is on a rank, and whether it is served in half of its bits.
Share = tuple[str, str | int | None, Held, bool]

# Of the names that checkpoints give their tensors.
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d{1,5})\.")
_SIGHT = re.compile(r"vis|image|audio|projector|mm_|multi_modal")
_FIRST = re.compile(r"embed_tokens|wte\.|word_embeddings|embed_in|tok_embeddings|embeddings\.weight")
_LAST = re.compile(r"lm_head|embed_out|^output\.")
# Every rank holds these whole: norms, routers, and what MLA projects down to its latent.
_WHOLE = re.compile(r"norm|_a_proj|\.gate\.|router")
# Not those that each token takes (shared_experts).
_EXPERTS = re.compile(r"(?:^|\.)experts\.")


@dataclass(frozen=True)
class WeightBytes:
    """Bytes of which each rank of a TP group holds its share, bytes that every rank holds whole, and the experts'."""

    shared: int = 0
    whole: int = 0
    experts: int = 0

    def on_rank(self, tp: int, of_experts: Fraction | None = None) -> int:
        """Bytes on one GPU, which holds this part of the experts; where it is not given, the share of TP."""
        part = Fraction(1, tp) if of_experts is None else of_experts
        return -(-self.shared // tp) + self.whole + math.ceil(self.experts * part)

    def __add__(self, other: WeightBytes) -> WeightBytes:
        return WeightBytes(self.shared + other.shared, self.whole + other.whole, self.experts + other.experts)


@dataclass(frozen=True)
class Weights:
    """What is stored, by dtype, and what of it is loaded where; `unused` is what serving leaves on the disk."""

    stored: Mapping[str, int]
    layers: tuple[WeightBytes, ...]
    first: WeightBytes
    last: WeightBytes
    everywhere: WeightBytes = WeightBytes()
    unused: int = 0
    estimated: bool = False

    @property
    def loaded(self) -> int:
        """Bytes that all GPUs together hold at TP=1."""
        return sum((*self.layers, self.first, self.last, self.everywhere), WeightBytes()).on_rank(1)

    def on_stage(self, begin: int, end: int, tp: int, of_experts: Fraction | None = None) -> int:
        """Bytes on one GPU of the stage that has these layers, and this part of their experts."""
        part = sum(self.layers[begin:end], self.everywhere)
        first, last = begin == 0, end == len(self.layers)
        part += self.first if first else WeightBytes()
        # Without a head of its own, the last stage computes with a second copy of the embedding.
        part += (
            self.last if last and (first or self.last.shared) else self.first if last and not first else WeightBytes()
        )
        return part.on_rank(tp, of_experts)


def shares(found: Iterable[Tensor], layers: int) -> Counter[Share]:
    """The bytes of tensors by dtype and place, in a model of so many layers: a few sums, however many there are."""
    sums: Counter[Share] = Counter()
    for name, dtype, stored in found:
        # vLLM serves what is stored in 32 bits in 16; scales of quantised weights stay.
        halved = dtype == "F32" and "scale" not in name
        sums[dtype, _place(name, layers), _held(name), halved] += stored
    return sums


def weigh(found: Iterable[Tensor], shape: ModelConfig) -> Weights:
    """The weights that these tensors are."""
    return summed(shares(found, len(shape.layers)), shape)


def summed(sums: Mapping[Share, int], shape: ModelConfig) -> Weights:
    """The weights that tensors with these sums are."""
    stored: Counter[str] = Counter()
    places: dict[str | int, Counter[Held]] = {}
    unused = 0
    for (dtype, place, held, halved), count in sums.items():
        stored[dtype] += count
        if place is None:
            unused += count
        else:
            places.setdefault(place, Counter())[held] += count // 2 if halved else count
    part = {place: WeightBytes(found["shared"], found["whole"], found["experts"]) for place, found in places.items()}
    layers = tuple(part.get(index, WeightBytes()) for index in range(len(shape.layers)))
    first, last, everywhere = (part.get(place, WeightBytes()) for place in ("first", "last", "everywhere"))
    return Weights(dict(stored), layers, first, last, everywhere, unused)


def _held(name: str) -> Held:
    if _EXPERTS.search(name):
        return "experts"
    return "whole" if _WHOLE.search(name) else "shared"


def _place(name: str, count: int) -> str | int | None:
    if _SIGHT.search(name):
        return "everywhere"
    if name.startswith("mtp."):
        return None
    layer = _LAYER.search(name)
    if layer:
        # Layers past the last one predict several tokens at once; only speculative decoding loads them.
        return int(layer[1]) if int(layer[1]) < count else None
    if _FIRST.search(name):
        return "first"
    return "last" if _LAST.search(name) else "everywhere"


def dense(shape: ModelConfig) -> int:
    """Bytes of the weights in 16 bits by the config alone; 0 for experts and linear attention, which it does not fix.

    A gated MLP has three matrices; what has two is counted too large, which errs to the safe side.
    """
    if shape.experts_used or any(layer.state or not layer.width for layer in shape.layers):
        return 0
    parameters = shape.vocab * shape.hidden * (1 if shape.tied else 2)
    for layer in shape.layers:
        queries = shape.heads * layer.width // 2
        parameters += 2 * shape.hidden * queries + shape.hidden * layer.heads * layer.width
        parameters += 3 * shape.hidden * shape.mlp + 2 * shape.hidden
    return 2 * parameters


def spread(total: int, shape: ModelConfig) -> Weights:
    """The weights where only their sum is known: embeddings by the config, the rest evenly over the layers.

    Of that the experts have what their parameters are of a layer's.
    """
    embedding = min(shape.vocab * shape.hidden * 2, total // 3)
    head = 0 if shape.tied else embedding
    layer = (total - embedding - head) // len(shape.layers)
    routed = 3 * shape.hidden * shape.expert * shape.experts
    width = max((layer.width for layer in shape.layers), default=0) // 2
    beside = 2 * shape.hidden * shape.heads * width + 3 * shape.hidden * shape.expert
    experts = layer * routed // (routed + beside) if routed else 0
    layers = (WeightBytes(layer - experts, experts=experts),) * len(shape.layers)
    return Weights({"unknown": total}, layers, WeightBytes(embedding), WeightBytes(head), estimated=True)


def rule_of_thumb(weights: int) -> int:
    """P·4/(32/Q)·1.2 in bytes: what the weights hold and a fifth; it knows nothing of context or of requests."""
    return weights * 12 // 10


def gib(size: float) -> str:
    """A size for people."""
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"
