"""Layers, heads and sizes of a model, from its config.json; anyone may have written it, so each value is checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from vllm_cluster.serving.fit.config_keys import entries, flag, number, optional, unread
from vllm_cluster.serving.fit.kv_cache import (
    BLOCK,
    LATENT_BLOCK,
    MAMBA_2_STATES,
    STATES,
    Layer,
    Page,
    Rows,
    places,
)

MAX_LAYERS = 4096
Kind = Literal["full", "window", "state", "both", "none"]

# "One in so many layers attends to everything", where the config does not have the number.
_PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}
# Those whose KV cache is known to be read right here; any other is read as ordinary attention, with a note.
_KNOWN = """ llama mistral mixtral ministral3 qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next qwen3_5 qwen3_5_moe qwen2_vl
 qwen2_5_vl qwen3_vl qwen3_vl_moe gemma gemma2 gemma3 gemma4 phi phi3 phimoe deepseek_v2 deepseek_v3
 deepseek_v32 kimi_k2 kimi_linear glm4 glm4_moe glm4_moe_lite glm_moe_dsa gpt_oss gpt2 gpt_neox opt cohere cohere2
 granite granitemoe granitemoehybrid starcoder2 olmo olmo2 olmo3 olmoe nemotron_h minimax_m2 exaone4 llama4 mimo_v2
 mimo_v2_flash deepseek_v4 step3p5 chatglm dbrx ernie4_5 ernie4_5_moe falcon falcon_h1 hy_v3 jamba lfm2 zamba2 """


@dataclass(frozen=True)
class Quantised:
    """A size that quantisation cuts into blocks; of each expert, or of what every layer has."""

    name: str
    size: int
    block: int
    experts: bool = False


@dataclass(frozen=True)
class ModelConfig:
    """A model's sizes; `divided` are the numbers that TP must divide, with what they count.

    `kv_dtype` is that of the KV cache where the command line names none.
    """

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
    divided: tuple[tuple[int, str], ...] = ()
    kv_dtype: str = "auto"


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
    kv_dtype, exact = _kv_dtype(config)
    if not exact:
        notes = ("its KV cache of 4 bits is counted as one of 8 bits: an estimate", *notes)
    if kind.removesuffix("_text") not in _KNOWN.split():
        usual = "latent" if optional(config, "latent") else "ordinary"
        text = f"the model type {kind} is not known: its KV cache is an estimate, that of {usual} attention"
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
        experts=optional(config, "experts") if used else 0,
        experts_used=used,
        expert=expert,
        blocks=tuple(_blocks(config, mlp, expert, output)),
        notes=notes,
        divided=tuple(_divided(config, heads, layers)),
        kv_dtype=kv_dtype,
    )


def _divided(config: Mapping[str, object], heads: int, layers: Sequence[Layer]) -> Iterator[tuple[int, str]]:
    """What vLLM splits over the GPUs of a TP group, and rejects where it cannot."""
    for count in (heads, optional(config, "window heads")):
        yield count, f"its {count} attention heads"
    groups = optional(config, "output groups")
    yield groups, f"the {groups} groups of its attention's output"
    if any(layer.state for layer in layers):
        for meaning in ("delta keys", "delta values", "kimi heads", "mamba heads"):
            count = optional(config, meaning)
            yield count, f"the {count} heads of its linear attention"
        groups = optional(config, "mamba groups")
        yield groups if groups > 1 else 0, f"the {groups} groups of its Mamba layers"


def _kv_dtype(config: Mapping[str, object]) -> tuple[str, bool]:
    """The dtype in which vLLM keeps the KV cache by itself, as the checkpoint names it; whether it is exact here."""
    stated = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(stated, Mapping):
        return "auto", True
    if stated.get("quant_method") == "compressed-tensors":
        return ("fp8" if stated.get("kv_cache_scheme") else "auto"), True
    if not str(stated.get("quant_method")).startswith("modelopt"):
        return "auto", True
    inner = stated.get("quantization")
    parts = (inner if isinstance(inner, Mapping) else stated, stated)
    keys = ("kv_cache_scheme", "kv_cache_quant_algo")
    scheme = next((part[key] for key in keys for part in parts if part.get(key)), "")
    if isinstance(scheme, Mapping):
        bits = (scheme.get("type"), scheme.get("num_bits"), scheme.get("dynamic") is False)
        scheme = "fp8" if bits == ("float", 8, True) else "nvfp4" if bits[:2] == ("float", 4) else ""
    name = str(scheme).lower()
    return ("fp8", name == "fp8") if name in ("fp8", "nvfp4") else ("auto", True)


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
    full, window, state = _full(config, heads, head), _window(config, heads, head), _state(config, kind)
    found = kinds(config, kind, count)
    full, window, state = _in_groups(full, window, state, found, latent=bool(optional(config, "latent")))
    both = replace(full, state=state.state, states=state.states, state_places=state.state_places)
    made = {"full": full, "window": window, "state": state, "both": both, "none": Layer()}
    shared = optional(config, "layers that share")
    layers = tuple(made[k] if i < count - shared else Layer() for i, k in enumerate(found))
    notes = []
    if "state" in found and not state.state:
        notes.append(f"what its {found.count('state')} layers without attention keep of a request is not counted")
    return layers, tuple(notes)


def _in_groups(
    full: Layer, window: Layer, state: Layer, found: list[Kind], *, latent: bool
) -> tuple[Layer, Layer, Layer]:
    """The layers with the places that vLLM's groups of one size have for them, and the blocks of a hybrid."""
    both = found.count("both")
    attending, windows, keeping = found.count("full") + both, found.count("window"), found.count("state") + both
    if state.state and keeping and attending:
        page = Page(full.heads, full.width, state.state, LATENT_BLOCK if latent else BLOCK)
        of_full, of_state = places(attending, keeping)
        return replace(full, places=of_full, page=page), window, replace(state, state_places=of_state, page=page)
    sizes = sorted(layer.heads * layer.width for layer in (full, window))
    if not (attending and windows and sizes[0] and sizes[1] % sizes[0] == 0):
        return full, window, state
    of_full, of_window = places(attending, windows)
    return replace(full, places=of_full), replace(window, places=of_window), state


def _full(config: Mapping[str, object], heads: int, head: int) -> Layer:
    """A layer that attends to everything."""
    latent, rope = optional(config, "latent"), optional(config, "rotary width")
    if latent and rope:
        # The indexer of sparse attention keeps 8-bit keys with a 4-byte scale for every 128.
        index = optional(config, "index width") if optional(config, "index tokens") else 0
        return Layer(1, latent + rope, indexer=index + index // 128 * 4)
    kv_heads, wide = _kv_heads(config, heads), optional(config, "full head width")
    if wide:
        return Layer(optional(config, "full KV heads") or kv_heads, 2 * wide)
    return Layer(kv_heads, head + (optional(config, "value width") or head))


def _kv_heads(config: Mapping[str, object], heads: int) -> int:
    if flag(config, "multi_query") and not flag(config, "new_decoder_architecture"):
        return 1
    return optional(config, "KV heads") or heads


def _window(config: Mapping[str, object], heads: int, head: int) -> Layer:
    """A layer that attends to a window; of some models with heads of its own."""
    window = optional(config, "window") or None
    if optional(config, "latent") and optional(config, "rotary width"):
        return replace(_full(config, heads, head), window=window)
    key = optional(config, "window head width") or head
    value = optional(config, "window value width") or optional(config, "value width") or key
    kv_heads = optional(config, "window KV heads") or _kv_heads(config, heads)
    return Layer(kv_heads, key + value, window)


# Bytes of a row and of its index in the caches of compressed attention, and what vLLM rounds their blocks up to.
_ROW, _INDEX_ROW, _ALIGNED = 584, 132, 576


def _compressed(
    config: Mapping[str, object], ratios: list[object], count: int
) -> tuple[tuple[Layer, ...], tuple[str, ...]]:
    """The layers of a model that keeps one row for 4 or for 128 tokens, and all rows of a window.

    All its caches take blocks of one size, that of the widest group of them, for different numbers of tokens: every
    layer is counted with its part of all.

    Raises:
        ValueError: it compresses in another way.
    """
    found = [entry for entry in ratios if entry in (0, 1, 4, 128)][:count]
    if len(found) < min(count, len(ratios)) or len(ratios) < count:
        raise ValueError(f"its compress_ratios are not {count} of 0, 1, 4 or 128")
    fine, coarse = found.count(4), found.count(128)
    near, index = _aligned(64 * _ROW), _aligned(64 * _INDEX_ROW)
    # What the compressors keep of tokens that are not yet a row, in blocks of 4 and of 8 tokens.
    open_rows, open_index = _aligned(64 * number(config, "head width")), _aligned(64 * optional(config, "index width"))
    numbers = (count, *filter(None, (fine, coarse)))
    group = min(range(fine or 1, count + 1), key=lambda size: (sum(-n % size for n in numbers), -size))
    pieces = -(-count // group)
    widest = max(
        fine * (near + index) + coarse * _aligned(2 * _ROW),
        -(-count // pieces) * near,
        fine * (open_rows + open_index),
        coarse * open_rows,
    )
    part = -(-widest // count)
    rows = [Rows(64, pieces * part, optional(config, "sliding window") or None)]
    rows += [Rows(256, part)] if fine or coarse else []
    rows += [Rows(4, part, 8)] if fine else []
    rows += [Rows(8, part, 128)] if coarse else []
    return (Layer(1, rows=tuple(rows)),) * count, (
        "its KV cache is an estimate: how compressed attention is laid out differs between versions of vLLM",
    )


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
    if period := optional(config, "attention period"):
        offset = optional(config, "attention offset")
        return ["full" if index % period == offset else "state" for index in range(count)]
    return None


def _named(name: str) -> Kind:
    if "sliding" in name or "chunked" in name:
        return "window"
    if name == "hybrid":
        return "both"
    if "linear" in name or name in ("mamba", "mamba2", "conv", "recurrent"):
        return "state"
    return "none" if name in ("moe", "mlp") else "full"


def _periodic(config: Mapping[str, object], model_type: str, count: int) -> list[Kind]:
    """Where the config gives a rule, or nothing at all."""
    period = optional(config, "full period")
    if period:
        return ["full" if (index + 1) % period == 0 else "state" for index in range(count)]
    if optional(config, "mamba heads"):
        return ["both"] * count
    if optional(config, "chunk") and "no_rope_layers" in config:  # Llama 4: those without rotary positions see all
        return ["window" if rotary else "full" for rotary in entries(config, "rotary") or [1, 1, 1, 0] * count]
    if not optional(config, "sliding window") or config.get("use_sliding_window") is False:
        return ["full"] * count
    period = optional(config, "window period") or _PATTERNS.get(model_type, 0)
    if period:
        return ["window" if (index + 1) % period else "full" for index in range(count)]
    first = optional(config, "first window")
    return ["window" if index >= first else "full" for index in range(count)]


# Of these the state is kept in 32 bits where the config names no dtype; of all others in that of the model.
_STATES_IN_32 = ("nemotron_h",)


def _state(config: Mapping[str, object], kind: str) -> Layer:
    """A layer of linear attention: its state, and its convolution's input in 16 bits."""

    def of(meaning: str) -> int:
        return optional(config, meaning)

    stated = config.get("mamba_ssm_cache_dtype") or config.get("mamba_ssm_dtype")
    wide = 4 if stated == "float32" or (not stated and kind in _STATES_IN_32) else 2
    values, keys = of("delta values"), of("delta key width")
    if values:  # gated delta net
        channels = 2 * keys * of("delta keys") + of("delta value width") * values
        size = values * of("delta value width") * keys * wide + channels * _before(of("delta convolution")) * 2
        return Layer(state=size)
    if heads := of("kimi heads"):  # Kimi delta attention
        head = of("kimi width")
        return Layer(state=heads * head * head * 4 + 3 * heads * head * _before(of("kimi convolution")) * 2)
    if of("short convolution"):
        return Layer(state=(of("short width") or of("hidden")) * _before(of("short convolution")) * 2)
    inner, heads, states = of("mamba expansion") * of("hidden"), of("mamba heads"), of("mamba states")
    convolution = _before(of("mamba convolution")) * 2
    if heads and states:  # Mamba 2
        inner = heads * of("mamba width") or inner
        channels = inner + 2 * states * (of("mamba groups") or 1)
        return Layer(state=inner * states * wide + channels * convolution, states=MAMBA_2_STATES)
    return Layer(state=inner * (states * wide + convolution) if states else 0, states=STATES)


def _before(kernel: int) -> int:
    """How many inputs a convolution looks back on."""
    return (kernel or 4) - 1
