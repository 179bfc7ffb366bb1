"""Layers, heads and sizes of a model, from its config.json; anyone may have written it, so each value is checked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from vllm_cluster.serving.fit.config_keys import entries, flag, number, optional, unread

BLOCK = 16
# What vLLM schedules at once by default on large GPUs; window layers keep each such step in flight beside their window.
BATCHED = 8192
# Steps in flight of an engine without stages: the next one is scheduled while one runs. A stage more is a step more.
STEPS = 2
# States of linear attention that vLLM keeps of a request while it caches prefixes, its default from 0.32 on.
STATES = 2
MAX_LAYERS = 4096
Kind = Literal["full", "window", "state", "none"]

# "One in so many layers attends to everything", where the config does not have the number.
_PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}
# Those whose KV cache is known to be read right here; any other is read as ordinary attention, with a note.
_KNOWN = """ llama mistral mixtral ministral3 qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next qwen3_5 qwen3_5_moe qwen2_vl
 qwen2_5_vl qwen3_vl qwen3_vl_moe gemma gemma2 gemma3 gemma4 phi phi3 phimoe deepseek_v2 deepseek_v3
 deepseek_v32 kimi_k2 kimi_linear glm4 glm4_moe glm_moe_dsa gpt_oss gpt2 gpt_neox opt cohere cohere2 granite
 granitemoe granitemoehybrid starcoder2 olmo olmo2 olmoe nemotron_h minimax_m2 exaone4 llama4 mimo_v2
 mimo_v2_flash deepseek_v4 step3p5 """


@dataclass(frozen=True)
class Rows:
    """A cache of packed rows: bytes of a block of so many tokens, in any dtype; of a window, the last of them."""

    tokens: int
    bytes: int
    window: int | None = None

    def held(self, tokens: int, steps: int) -> int:
        """Bytes for one request of so many tokens."""
        return _blocks_of(tokens, self.tokens, self.window, steps) * self.bytes


def _blocks_of(tokens: int, block: int, window: int | None, steps: int) -> int:
    """How many blocks a request holds; a window begins anywhere in one, and grows by the steps in flight."""
    if window and tokens > window - 1 + steps * BATCHED:
        tokens = window - 1 + steps * BATCHED + block
    return -(-tokens // block)


@dataclass(frozen=True)
class Layer:
    """What one layer keeps of a request: `width` elements a token and KV head, `indexer` bytes a token.

    One head stays whole on every GPU; so does the latent of MLA, which is one head. `state` bytes are one
    of the states that linear attention keeps instead, `rows` what compressed attention does.

    vLLM deals layers with and without a window to groups of one size: of so many `places` a layer, the last ones are
    empty where the size does not divide their number.
    """

    heads: int = 0
    width: int = 0
    window: int | None = None
    indexer: int = 0
    state: int = 0
    rows: tuple[Rows, ...] = ()
    places: Fraction = Fraction(1)

    def held(self, tokens: int, tp: int, kv_bytes: int, steps: int = STEPS) -> int:
        """Bytes on one GPU for one request of so many tokens, in whole blocks."""
        blocks = _blocks_of(tokens, BLOCK, self.window, steps)
        each = max(1, self.heads // tp) * self.width * kv_bytes + self.indexer
        return (
            math.ceil(blocks * BLOCK * each * self.places)
            + STATES * self.state // tp
            + sum(rows.held(tokens, steps) for rows in self.rows)
        )


@dataclass(frozen=True)
class Quantised:
    """A size that quantisation cuts into blocks; of each expert, or of what every layer has."""

    name: str
    size: int
    block: int
    experts: bool = False


@dataclass(frozen=True)
class ModelConfig:
    """A model's sizes; `groups` are those of its attention's output, `window_heads` the heads of layers with a window,
    where it has such: TP divides them."""

    model_type: str
    architecture: str
    layers: tuple[Layer, ...]
    heads: int
    hidden: int
    vocab: int
    tied: bool
    context: int
    mlp: int
    experts: int
    experts_used: int
    expert: int
    blocks: tuple[Quantised, ...]
    notes: tuple[str, ...]
    groups: int = 0
    window_heads: int = 0


def model_config(document: Mapping[str, object]) -> ModelConfig:
    """The shape that a config.json describes; of a multimodal model, its language part's.

    Raises:
        ValueError: what is needed is not in it, in a few words.
    """
    config = {**document, **_language_part(document)}
    kind = str(config.get("model_type", "unknown"))
    if flag(document, "is_encoder_decoder"):
        raise ValueError("encoder-decoder models are not supported, only decoders")
    count = _count(config)
    if count > MAX_LAYERS:
        raise ValueError(f"it has {count} layers")
    heads = number(config, "heads")
    hidden = number(config, "hidden")
    head = optional(config, "head width") or hidden // heads
    layers, notes = _layers(config, kind, count, heads, head)
    mlp = optional(config, "MLP") or 4 * hidden
    used = optional(config, "experts used")
    expert = (optional(config, "expert") or mlp) if used else 0
    groups = optional(config, "output groups")
    output = groups * optional(config, "output rank") or heads * (optional(config, "value width") or head)
    if kind.removesuffix("_text") not in _KNOWN.split():
        text = f"the model type {kind} is not known: its KV cache is an estimate, that of ordinary attention"
        missing = ", ".join(unread(config))
        notes = (text + (f"; not read: {missing}" if missing else ""), *notes)
    names = document.get("architectures") or config.get("architectures")
    return ModelConfig(
        model_type=kind,
        architecture=str(names[0]) if isinstance(names, list) and names else "",
        layers=layers,
        heads=heads,
        hidden=hidden,
        vocab=number(config, "vocabulary"),
        tied=flag(config, "tie_word_embeddings", kind.startswith("gemma")),
        context=optional(config, "context") or 2048,
        mlp=mlp,
        window_heads=optional(config, "window heads"),
        experts=optional(config, "experts") if used else 0,
        experts_used=used,
        expert=expert,
        blocks=tuple(_blocks(config, mlp, expert, output)),
        notes=notes,
        groups=groups,
    )


def _count(config: Mapping[str, object]) -> int:
    """How many layers it has; of some models only the list of their kinds has it."""
    pattern = config.get("hybrid_override_pattern")
    listed = entries(config, "kinds") or (pattern if isinstance(pattern, str) else "")
    return optional(config, "layers") or len(listed) or number(config, "layers")


_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")


def _language_part(document: Mapping[str, object]) -> dict[str, object]:
    for name in _PARTS:
        part = document.get(name)
        if isinstance(part, dict):
            return {**part, **_language_part(part)}
    return {}


def _layers(
    config: Mapping[str, object], kind: str, count: int, heads: int, head: int
) -> tuple[tuple[Layer, ...], tuple[str, ...]]:
    if ratios := entries(config, "ratios"):
        return _compressed(config, ratios, count)
    full, window, state = _full(config, heads, head), _window(config, heads, head), state_bytes(config)
    found = kinds(config, kind, count)
    full, window = _in_groups(full, window, found.count("full"), found.count("window"))
    made = {"full": full, "window": window, "state": Layer(state=state), "none": Layer()}
    shared = optional(config, "layers that share")
    layers = tuple(made[k] if i < count - shared else Layer() for i, k in enumerate(found))
    notes = []
    if "state" in found and not state:
        notes.append(f"what its {found.count('state')} layers without attention keep of a request is not counted")
    return layers, tuple(notes)


def _in_groups(full: Layer, window: Layer, *numbers: int) -> tuple[Layer, Layer]:
    """The layers with the places that vLLM's groups of one size have for them."""
    sizes = sorted(layer.heads * layer.width for layer in (full, window))
    if not (all(numbers) and sizes[0] and sizes[1] % sizes[0] == 0):
        return full, window
    # The smaller number is the size of a group, unless the other one is hardly larger.
    group = max(numbers) if max(numbers) < 1.5 * min(numbers) else min(numbers)
    places = [Fraction(-(-number // group) * group, number) for number in numbers]
    return replace(full, places=places[0]), replace(window, places=places[1])


def _full(config: Mapping[str, object], heads: int, head: int) -> Layer:
    """A layer that attends to everything."""
    latent, rope = optional(config, "latent"), optional(config, "rotary width")
    if latent and rope:
        # The indexer of sparse attention keeps 8-bit keys with a 4-byte scale for every 128.
        index = optional(config, "index width") if optional(config, "index tokens") else 0
        return Layer(1, latent + rope, indexer=index + index // 128 * 4)
    kv_heads, wide = optional(config, "KV heads") or heads, optional(config, "full head width")
    if wide:
        return Layer(optional(config, "full KV heads") or kv_heads, 2 * wide)
    return Layer(kv_heads, head + (optional(config, "value width") or head))


def _window(config: Mapping[str, object], heads: int, head: int) -> Layer:
    """A layer that attends to a window; of some models with heads of its own."""
    window = optional(config, "window") or None
    if optional(config, "latent") and optional(config, "rotary width"):
        return replace(_full(config, heads, head), window=window)
    key = optional(config, "window head width") or head
    value = optional(config, "window value width") or optional(config, "value width") or key
    kv_heads = optional(config, "window KV heads") or optional(config, "KV heads") or heads
    return Layer(kv_heads, key + value, window)


# Bytes of a row and of its index in the caches of compressed attention, and what vLLM rounds their blocks up to.
_ROW, _INDEX_ROW, _ALIGNED = 584, 132, 576


def _compressed(
    config: Mapping[str, object], ratios: list[object], count: int
) -> tuple[tuple[Layer, ...], tuple[str, ...]]:
    """The layers of a model that keeps one row for 4 or for 128 tokens, and all rows of a window.

    Raises:
        ValueError: it compresses in another way.
    """
    found = [entry for entry in ratios if entry in (0, 1, 4, 128)][:count]
    if len(found) < min(count, len(ratios)) or len(ratios) < count:
        raise ValueError(f"its compress_ratios are not {count} of 0, 1, 4 or 128")
    window = optional(config, "sliding window") or None
    near = Rows(64, _aligned(64 * _ROW), window)
    rows = {
        4: (near, Rows(256, _aligned(64 * _ROW)), Rows(256, _aligned(64 * _INDEX_ROW))),
        128: (near, Rows(256, _aligned(2 * _ROW))),
    }
    layers = tuple(Layer(1, rows=rows.get(ratio, (near,))) for ratio in found)
    return layers, ("its KV cache is an estimate: what its compressor keeps of tokens in flight is not counted",)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _blocks(config: Mapping[str, object], mlp: int, expert: int, attention: int) -> Iterator[Quantised]:
    """Weights that vLLM rejects when a GPU's share is not a multiple of a quantisation block."""
    stated = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(stated, Mapping):
        return
    square = stated.get("weight_block_size")
    block = max((n for n in square if isinstance(n, int)), default=0) if isinstance(square, Sequence) else 0
    # Groups run along the inputs; for experts vLLM takes smaller groups by itself.
    group = stated.get("group_size")
    size = block or (group if isinstance(group, int) else 0)
    if size < 2:
        return
    yield Quantised("the attention's output", attention, size)
    if not expert or optional(config, "dense layers first") or config.get("mlp_only_layers"):
        yield Quantised("the MLP", mlp, size)
    # Experts of 4 bits have blocks of their own, and what is shared beside them is padded to whole ones.
    if expert and block and config.get("expert_dtype") != "fp4":
        yield Quantised("an expert", expert, block, experts=True)


def kinds(config: Mapping[str, object], model_type: str, count: int) -> list[Kind]:
    """The kind of every layer.

    Raises:
        ValueError: the config names fewer layers than it has.
    """
    listed = _listed(config, count)
    if listed is None:
        listed = _periodic(config, model_type, count)
    if len(listed) < count:
        raise ValueError(f"it describes {len(listed)} of its {count} layers")
    return listed[:count]


def _listed(config: Mapping[str, object], count: int) -> list[Kind] | None:
    """Where the config names layer by layer."""
    if named := entries(config, "kinds"):
        return [_named(str(entry)) for entry in named]
    if windows := entries(config, "windows"):
        return ["window" if entry == 1 else "full" for entry in windows]
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        letters: dict[str, Kind] = {"*": "full", "M": "state"}
        return [letters.get(letter, "none") for letter in pattern]
    if layers := entries(config, "full layers"):
        full = {entry for entry in layers if isinstance(entry, int)}  # counted from 1
        return ["full" if index + 1 in full else "state" for index in range(count)]
    return None


def _named(name: str) -> Kind:
    if "sliding" in name or "chunked" in name:
        return "window"
    if "linear" in name or name in ("mamba", "mamba2", "conv", "recurrent"):
        return "state"
    return "none" if name in ("moe", "mlp") else "full"


def _periodic(config: Mapping[str, object], model_type: str, count: int) -> list[Kind]:
    """Where the config gives a rule, or nothing at all."""
    period = optional(config, "full period")
    if period:
        return ["full" if (index + 1) % period == 0 else "state" for index in range(count)]
    if not optional(config, "sliding window") or config.get("use_sliding_window") is False:
        return ["full"] * count
    period = optional(config, "window period") or _PATTERNS.get(model_type, 0)
    if period:
        return ["window" if (index + 1) % period else "full" for index in range(count)]
    first = optional(config, "first window")
    return ["window" if index >= first else "full" for index in range(count)]


def state_bytes(config: Mapping[str, object]) -> int:
    """What a layer of linear attention keeps of a request: its state in 32 bits, its convolution's input in 16."""

    def of(meaning: str) -> int:
        return optional(config, meaning)

    values, keys = of("delta values"), of("delta key width")
    if values:  # gated delta net
        channels = 2 * keys * of("delta keys") + of("delta value width") * values
        return values * of("delta value width") * keys * 4 + channels * _before(of("delta convolution")) * 2
    if heads := of("kimi heads"):  # Kimi delta attention
        wide = of("kimi width")
        return heads * wide * wide * 4 + 3 * heads * wide * _before(of("kimi convolution")) * 2
    heads, wide, states = of("mamba heads"), of("mamba width"), of("mamba states")
    if heads and wide and states:  # Mamba 2
        channels = heads * wide + 2 * states * (of("mamba groups") or 1)
        return heads * wide * states * 4 + channels * _before(of("mamba convolution")) * 2
    return 0


def _before(kernel: int) -> int:
    """How many inputs a convolution looks back on."""
    return (kernel or 4) - 1
