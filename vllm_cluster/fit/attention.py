"""The attention of each layer, from the different config keys of the model families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from vllm_cluster.fit.config_values import optional

Kind = Literal["full", "window", "state", "none"]

# "One in so many layers attends to everything", where the config does not have the number.
_PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}


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
    switches = config.get("attn_type_list")
    if isinstance(switches, list):
        return ["full" if entry == 1 else "state" for entry in switches]
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
    period = optional(config, "attn_layer_period")
    if period:
        offset = optional(config, "attn_layer_offset")
        return ["full" if index % period == offset else "state" for index in range(count)]
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
