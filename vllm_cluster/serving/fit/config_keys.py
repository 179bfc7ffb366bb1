"""The keys of a config.json, by what they mean; the file is anyone's, so each value is checked.

The names are those that vLLM 0.33 reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_MAX_VALUE = 1 << 48

KEYS: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "head width": ("head_dim", "attention_head_dim", "hidden_size_per_head", "kv_channels"),
    "value width": ("v_head_dim",),
    "KV heads": (
        "n_head_kv",
        "num_kv_heads",
        "num_key_value_heads",
        "multi_query_group_num",
        "num_attention_groups",
        "attn_config.kv_n_heads",
    ),
    "vocabulary": ("vocab_size", "padded_vocab_size"),
    "context": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length", "n_ctx"),
    "MLP": ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "ffn_config.ffn_hidden_size"),
    "experts": (
        "num_experts",
        "moe_num_experts",
        "n_routed_experts",
        "num_local_experts",
        "ffn_config.moe_num_experts",
    ),
    "experts used": (
        "num_experts_per_tok",
        "num_experts_per_token",
        "top_k_experts",
        "moe_topk",
        "moe_top_k",
        "moe_k",
        "ffn_config.moe_top_k",
    ),
    "expert": ("moe_intermediate_size",),
    "dense layers first": ("first_k_dense_replace",),
    # MLA, and the index of sparse attention.
    "latent": ("kv_lora_rank",),
    "rotary width": ("qk_rope_head_dim",),
    "index width": ("index_head_dim",),
    "index tokens": ("index_topk",),
    "output groups": ("o_groups",),
    "output rank": ("o_lora_rank",),
    # Windows, and what differs in their layers or in those without.
    "window": ("sliding_window", "attention_chunk_size"),
    "sliding window": ("sliding_window",),
    "chunk": ("attention_chunk_size",),
    "window period": ("sliding_window_pattern",),
    "window KV heads": ("swa_num_key_value_heads",),
    "window heads": (
        "swa_num_attention_heads",
        "num_sliding_attention_heads",
        "attention_other_setting.num_attention_heads",
    ),
    "window head width": ("swa_head_dim",),
    "window value width": ("swa_v_head_dim",),
    "first window": ("max_window_layers",),
    "full head width": ("global_head_dim",),
    "full KV heads": ("num_global_key_value_heads",),
    "layers that share": ("num_kv_shared_layers",),
    "full period": ("full_attention_interval",),
    "attention period": ("attn_layer_period",),
    "attention offset": ("attn_layer_offset",),
    # Linear attention: gated delta net, Kimi delta attention, short convolution, Mamba 1 and 2.
    "delta values": ("linear_num_value_heads",),
    "delta value width": ("linear_value_head_dim",),
    "delta keys": ("linear_num_key_heads",),
    "delta key width": ("linear_key_head_dim",),
    "delta convolution": ("linear_conv_kernel_dim",),
    "kimi heads": ("linear_attn_config.num_heads",),
    "kimi width": ("linear_attn_config.head_dim",),
    "kimi convolution": ("linear_attn_config.short_conv_kernel_size",),
    "short convolution": ("conv_L_cache",),
    "short width": ("conv_dim",),
    "mamba heads": ("mamba_num_heads", "mamba_n_heads", "n_mamba_heads"),
    "mamba width": ("mamba_head_dim", "mamba_d_head", "mamba_headdim"),
    "mamba expansion": ("mamba_expand", "expand"),
    "mamba states": ("ssm_state_size", "mamba_d_state"),
    "mamba groups": ("n_groups", "mamba_n_groups", "mamba_ngroups"),
    "mamba convolution": ("conv_kernel", "mamba_d_conv"),
}
# One entry a layer.
LISTS: Mapping[str, tuple[str, ...]] = {
    "kinds": ("layer_types", "layers_block_type"),
    "windows": ("hybrid_layer_pattern",),
    "rotary": ("no_rope_layers",),
    "ratios": ("compress_ratios",),
    "full layers": ("linear_attn_config.full_attn_layers",),
}


def optional(config: Mapping[str, object], meaning: str) -> int:
    """Read the first of the keys that is set, 0 where none is; of a list (one a layer) the largest.

    Raises:
        ValueError: the value is not an integer that a model can have.
    """
    for name in KEYS[meaning]:
        value = _value(config, name)
        if isinstance(value, list):
            value = max((entry for entry in value if isinstance(entry, int)), default=None)
        # GPTQ and others write -1 for "none".
        if value is None or value is False or value in (0, -1):
            continue
        if not isinstance(value, int) or value is True or not 0 < value < _MAX_VALUE:
            raise ValueError(f"{name} is {str(value)[:40]!r}")
        return value
    return 0


def number(config: Mapping[str, object], meaning: str) -> int:
    """Read as `optional`, where one of the keys must be set.

    Raises:
        ValueError: none is.
    """
    found = optional(config, meaning)
    if not found:
        raise ValueError(f"it has no {KEYS[meaning][0]}")
    return found


def entries(config: Mapping[str, object], meaning: str) -> list[object] | None:
    """Read a list with an entry for each layer; None where there is none."""
    found = (_value(config, name) for name in LISTS[meaning])
    return next((value for value in found if isinstance(value, list) and value), None)


# Keys that may change what a request keeps, and those of them that do not.
_OF_CACHES = re.compile(r"window|swa|kv|latent|compress|mamba|ssm|linear|layer_?types|pattern|recurrent|hybrid|sparse")
_OF_OTHERS = re.compile(r"rope|scal|init|drop|bias|norm|quant")


def unread(config: Mapping[str, object]) -> list[str]:
    """List the keys that may be of another kind of attention and are not read; few, since anyone wrote them."""
    read = {name.partition(".")[0] for names in (*KEYS.values(), *LISTS.values()) for name in names}
    found = (name for name, value in config.items() if name not in read and value and not isinstance(value, str))
    return sorted(name[:40] for name in found if _OF_CACHES.search(name) and not _OF_OTHERS.search(name))[:4]


def flag(config: Mapping[str, object], name: str, default: bool = False) -> bool:
    """Whether a key is true."""
    value = config.get(name)
    return default if value is None else value is True


def _value(config: Mapping[str, object], name: str) -> object:
    """The value of a key, or of one in a part of the config (part.key)."""
    part, _, key = name.rpartition(".")
    inner = config.get(part) if part else config
    return inner.get(key) if isinstance(inner, Mapping) else None
