"""Layers, heads and sizes of a model, from its config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_cluster.fit.attention import kinds, state_bytes
from vllm_cluster.fit.config_values import MAX_LAYERS, flag, number, optional

BLOCK = 16
# What vLLM schedules at once by default on large GPUs; window layers keep that much beside their window.
BATCHED = 8192

# Those whose KV cache is known to be read right here; any other is read as ordinary attention, with a note.
_KNOWN = """ llama mistral mixtral ministral3 qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next qwen3_5 qwen3_5_moe gemma
 gemma2 gemma3 gemma3_text gemma4 gemma4_text phi phi3 phimoe deepseek_v2 deepseek_v3 deepseek_v32 kimi_k2 kimi_linear
 glm4 glm4_moe glm_moe_dsa gpt_oss gpt2 gpt_neox gpt_bigcode opt falcon mpt bloom cohere cohere2 granite granitemoe
 granitemoehybrid starcoder2 olmo olmo2 olmoe jamba nemotron_h minimax_m2 dbrx exaone4 llama4_text """


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


def _kv_heads(config: Mapping[str, Any], heads: int) -> int:
    inner = config.get("attn_config")
    names = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", "num_attention_groups")
    stated = optional(config, *names) or (optional(inner, "kv_n_heads") if isinstance(inner, dict) else 0)
    if stated and not (flag(config, "multi_query") and config.get("model_type") == "falcon"):
        return stated
    return 1 if flag(config, "multi_query") and not flag(config, "new_decoder_architecture") else stated or heads


def _layers(
    config: Mapping[str, Any], kind: str, count: int, heads: int, head: int
) -> tuple[tuple[Layer, ...], tuple[str, ...]]:
    latent, rope = optional(config, "kv_lora_rank"), optional(config, "qk_rope_head_dim")
    if latent and rope and kind != "minicpm3":
        # The indexer of sparse attention keeps 8-bit keys with a 4-byte scale for every 128.
        index = optional(config, "index_head_dim") if optional(config, "index_topk") else 0
        full = local = Layer(1, latent + rope, indexer=index + index // 128 * 4)
    else:
        kv_heads = _kv_heads(config, heads)
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
