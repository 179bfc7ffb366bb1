"""Layers, heads and sizes of a model, from its config.json; anyone may have written it, so each value is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

BLOCK = 16
# What vLLM schedules at once by default on large GPUs; window layers keep that much beside their window.
BATCHED = 8192
MAX_LAYERS = 4096
_MAX_VALUE = 1 << 48
Kind = Literal["full", "window", "state", "none"]

# "One in so many layers attends to everything", where the config does not have the number.
_PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}
# Those whose KV cache is known to be read right here; any other is read as ordinary attention, with a note.
_KNOWN = """ llama mistral mixtral ministral3 qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next qwen3_5 qwen3_5_moe gemma
 gemma2 gemma3 gemma3_text gemma4 gemma4_text phi phi3 phimoe deepseek_v2 deepseek_v3 deepseek_v32 kimi_k2 kimi_linear
 glm4 glm4_moe glm_moe_dsa gpt_oss gpt2 gpt_neox opt cohere cohere2 granite granitemoe
 granitemoehybrid starcoder2 olmo olmo2 olmoe nemotron_h minimax_m2 exaone4 llama4_text """


@dataclass(frozen=True)
class Layer:
    """What one layer keeps of a request: `width` elements a token and KV head, `indexer` bytes a token.

    One head stays whole on every GPU; so does the latent of MLA, which is one head. `state` bytes a request
    are what linear attention keeps instead.
    """

    heads: int = 0
    width: int = 0
    window: int | None = None
    indexer: int = 0
    state: int = 0

    def held(self, tokens: int, tp: int, kv_bytes: int) -> int:
        """Bytes on one GPU for one request of so many tokens, in whole blocks."""
        if self.window and tokens > self.window - 1 + BATCHED:
            tokens = self.window - 1 + BATCHED + BLOCK
        blocks = -(-tokens // BLOCK)
        return blocks * BLOCK * (max(1, self.heads // tp) * self.width * kv_bytes + self.indexer) + self.state // tp


@dataclass(frozen=True)
class ModelConfig:
    """A model's sizes; `blocks` are sizes that quantisation cuts into blocks, as (name, size, block)."""

    model_type: str
    architecture: str
    layers: tuple[Layer, ...]
    heads: int
    hidden: int
    vocab: int
    tied: bool
    context: int
    mlp: int
    experts_used: int
    expert: int
    blocks: tuple[tuple[str, int, int], ...]
    notes: tuple[str, ...]


def model_config(document: Mapping[str, Any]) -> ModelConfig:
    """The shape that a config.json describes; of a multimodal model, its language part's.

    Raises:
        ValueError: what is needed is not in it, in a few words.
    """
    config = {**document, **_language_part(document)}
    kind = str(config.get("model_type", "unknown"))
    if flag(document, "is_encoder_decoder"):
        raise ValueError("encoder-decoder models are not supported, only decoders")
    count = number(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    if count > MAX_LAYERS:
        raise ValueError(f"it has {count} layers")
    heads = number(config, "num_attention_heads", "n_head", "n_heads", "num_heads")
    hidden = number(config, "hidden_size", "n_embd", "d_model")
    head = optional(config, "head_dim", "hidden_size_per_head", "kv_channels") or hidden // heads
    layers, notes = _layers(config, kind, count, heads, head)
    mlp = optional(config, "intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim") or 4 * hidden
    used = optional(config, "num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k")
    expert = (optional(config, "moe_intermediate_size") or mlp) if used else 0
    if kind not in _KNOWN.split():
        notes = (f"the model type {kind} was not tried: its KV cache is taken for that of ordinary attention", *notes)
    names = document.get("architectures") or config.get("architectures")
    return ModelConfig(
        model_type=kind,
        architecture=str(names[0]) if isinstance(names, list) and names else "",
        layers=layers,
        heads=heads,
        hidden=hidden,
        vocab=number(config, "vocab_size", "padded_vocab_size"),
        tied=flag(config, "tie_word_embeddings", kind.startswith("gemma")),
        context=optional(config, *_CONTEXT) or 2048,
        mlp=mlp,
        experts_used=used,
        expert=expert,
        blocks=tuple(_blocks(config, mlp, expert, heads * (optional(config, "v_head_dim") or head))),
        notes=notes,
    )


_CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length", "n_ctx")
_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")


def _language_part(document: Mapping[str, Any]) -> dict[str, Any]:
    for name in _PARTS:
        part = document.get(name)
        if isinstance(part, dict):
            return {**part, **_language_part(part)}
    return {}


def _layers(
    config: Mapping[str, Any], kind: str, count: int, heads: int, head: int
) -> tuple[tuple[Layer, ...], tuple[str, ...]]:
    latent, rope = optional(config, "kv_lora_rank"), optional(config, "qk_rope_head_dim")
    if latent and rope:
        # The indexer of sparse attention keeps 8-bit keys with a 4-byte scale for every 128.
        index = optional(config, "index_head_dim") if optional(config, "index_topk") else 0
        full = local = Layer(1, latent + rope, indexer=index + index // 128 * 4)
    else:
        kv_heads = optional(config, "num_key_value_heads", "num_kv_heads", "num_attention_groups") or heads
        local = Layer(kv_heads, head + (optional(config, "v_head_dim") or head))
        wide = optional(config, "global_head_dim")
        full = Layer(optional(config, "num_global_key_value_heads") or kv_heads, 2 * wide) if wide else local
    window = optional(config, "sliding_window", "attention_chunk_size")
    state = state_bytes(config)
    made = {
        "full": full,
        "window": Layer(local.heads, local.width, window or None, local.indexer),
        "state": Layer(state=state),
        "none": Layer(),
    }
    found = kinds(config, kind, count)
    shared = optional(config, "num_kv_shared_layers")
    layers = tuple(made[k] if i < count - shared else Layer() for i, k in enumerate(found))
    notes = []
    if "state" in found and not state:
        notes.append(f"what its {found.count('state')} layers without attention keep of a request is not counted")
    if config.get("compress_ratios"):
        notes.append("its compressed attention is not modelled: the real KV cache is smaller")
    return layers, tuple(notes)


def _blocks(config: Mapping[str, Any], mlp: int, expert: int, attention: int) -> list[tuple[str, int, int]]:
    """Weights that vLLM rejects when a GPU's share is not a multiple of a quantisation block."""
    stated = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(stated, dict):
        return []
    square = stated.get("weight_block_size")
    block = max((n for n in square if isinstance(n, int)), default=0) if isinstance(square, Sequence) else 0
    sizes = [("the attention's output", attention)]
    if not expert or optional(config, "first_k_dense_replace") or config.get("mlp_only_layers"):
        sizes.append(("the MLP", mlp))
    if block:
        sizes += [("an expert", expert)] if expert else []
    else:
        # Groups run along the inputs; for experts vLLM takes smaller groups by itself.
        block = optional(stated, "group_size") if isinstance(stated.get("group_size"), int) else 0
    return [(name, size, block) for name, size in sizes] if block > 1 else []


def kinds(config: Mapping[str, Any], model_type: str, count: int) -> list[Kind]:
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


def _listed(config: Mapping[str, Any], count: int) -> list[Kind] | None:
    """Where the config names layer by layer."""
    for name in ("layer_types", "layers_block_type"):
        if isinstance(config.get(name), list):
            return [_named(str(entry)) for entry in config[name]]
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        letters: dict[str, Kind] = {"*": "full", "M": "state"}
        return [letters.get(letter, "none") for letter in pattern]
    linear = config.get("linear_attn_config")
    if isinstance(linear, dict) and isinstance(linear.get("full_attn_layers"), list):
        full = {entry for entry in linear["full_attn_layers"] if isinstance(entry, int)}  # counted from 1
        return ["full" if index + 1 in full else "state" for index in range(count)]
    return None


def _named(name: str) -> Kind:
    if "sliding" in name or "chunked" in name:
        return "window"
    if "linear" in name or name in ("mamba", "mamba2", "conv", "recurrent"):
        return "state"
    return "none" if name in ("moe", "mlp") else "full"


def _periodic(config: Mapping[str, Any], model_type: str, count: int) -> list[Kind]:
    """Where the config gives a rule, or nothing at all."""
    period = optional(config, "full_attention_interval")
    if period:
        return ["full" if (index + 1) % period == 0 else "state" for index in range(count)]
    if not optional(config, "sliding_window") or config.get("use_sliding_window") is False:
        return ["full"] * count
    period = optional(config, "sliding_window_pattern") or _PATTERNS.get(model_type, 0)
    if period:
        return ["window" if (index + 1) % period else "full" for index in range(count)]
    first = optional(config, "max_window_layers")
    return ["window" if index >= first else "full" for index in range(count)]


def state_bytes(config: Mapping[str, Any]) -> int:
    """What a layer of linear attention keeps of a request: its state in 32 bits, its convolution's input in 16."""
    values = optional(config, "linear_num_value_heads")
    if values:  # gated delta net
        wide, key = optional(config, "linear_value_head_dim"), optional(config, "linear_key_head_dim")
        channels = 2 * key * optional(config, "linear_num_key_heads") + wide * values
        return values * wide * key * 4 + channels * _before(config, "linear_conv_kernel_dim") * 2
    linear = config.get("linear_attn_config")
    if isinstance(linear, dict):  # Kimi delta attention
        heads, wide = optional(linear, "num_heads"), optional(linear, "head_dim")
        return heads * wide * wide * 4 + 3 * heads * wide * _before(linear, "short_conv_kernel_size") * 2
    heads = optional(config, "mamba_num_heads", "mamba_n_heads")
    wide = optional(config, "mamba_head_dim", "mamba_d_head")
    states = optional(config, "ssm_state_size", "mamba_d_state")
    if heads and wide and states:  # Mamba 2
        channels = heads * wide + 2 * states * (optional(config, "n_groups", "mamba_n_groups") or 1)
        return heads * wide * states * 4 + channels * _before(config, "conv_kernel", "mamba_d_conv") * 2
    return 0


def _before(config: Mapping[str, Any], *names: str) -> int:
    """How many inputs a convolution looks back on."""
    return (optional(config, *names) or 4) - 1


def optional(config: Mapping[str, Any], *names: str) -> int:
    """The first of the keys that is set, 0 where none is; of a list (one a layer) the largest.

    Raises:
        ValueError: the value is not an integer that a model can have.
    """
    for name in names:
        value = config.get(name)
        if isinstance(value, list):
            value = max((entry for entry in value if isinstance(entry, int)), default=None)
        if value is None or value is False or value == 0:
            continue
        if not isinstance(value, int) or value is True or not 0 < value < _MAX_VALUE:
            # GPTQ and others write -1 for "none".
            if value == -1:
                continue
            raise ValueError(f"{name} is {str(value)[:40]!r}")
        return value
    return 0


def number(config: Mapping[str, Any], *names: str) -> int:
    """As `optional`, where one of them must be set.

    Raises:
        ValueError: none is.
    """
    found = optional(config, *names)
    if not found:
        raise ValueError(f"it has no {names[0]}")
    return found


def flag(config: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """Whether a key is true."""
    value = config.get(name)
    return default if value is None else value is True
