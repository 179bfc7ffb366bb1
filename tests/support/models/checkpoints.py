"""The files of a checkpoint as far as anybody reads them before loading: config, index and headers."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from math import prod

from tests.support.models.configs import Config

BYTES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "I32": 4}
Tensor = tuple[str, str, tuple[int, ...]]


def llama(config: Config, dtype: str = "BF16") -> Iterator[Tensor]:
    """Every tensor of a Llama."""
    hidden, mlp, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    yield "model.embed_tokens.weight", dtype, (vocab, hidden)
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        for name, shape in (
            ("self_attn.q_proj", (hidden, hidden)),
            ("self_attn.k_proj", (kv, hidden)),
            ("self_attn.v_proj", (kv, hidden)),
            ("self_attn.o_proj", (hidden, hidden)),
            ("mlp.gate_proj", (mlp, hidden)),
            ("mlp.up_proj", (mlp, hidden)),
            ("mlp.down_proj", (hidden, mlp)),
        ):
            yield f"{layer}.{name}.weight", dtype, shape
        yield f"{layer}.input_layernorm.weight", dtype, (hidden,)
        yield f"{layer}.post_attention_layernorm.weight", dtype, (hidden,)
    yield "model.norm.weight", dtype, (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", dtype, (vocab, hidden)


def mixture(config: Config) -> Iterator[Tensor]:
    """The weights of a mixture of experts in 8 bits: of each layer the experts in one tensor, and all else."""
    hidden = config["hidden_size"]
    experts = config["n_routed_experts"] * config["moe_intermediate_size"] * 3
    yield "model.embed_tokens.weight", "BF16", (config["vocab_size"], hidden)
    for index in range(config["num_hidden_layers"]):
        yield f"model.layers.{index}.self_attn.o_proj.weight", "F8_E4M3", (4 * hidden, hidden)
        yield f"model.layers.{index}.mlp.experts.0.up_proj.weight", "F8_E4M3", (experts, hidden)
    yield "lm_head.weight", "BF16", (config["vocab_size"], hidden)


def sizes(tensors: Iterable[Tensor]) -> list[tuple[str, str, int]]:
    """Name, dtype and bytes."""
    return [(name, dtype, prod(shape) * BYTES[dtype]) for name, dtype, shape in tensors]


def safetensors(tensors: Iterable[Tensor]) -> bytes:
    """A file that ends where its tensors would begin."""
    rows: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for (name, dtype, size), (_, _, shape) in zip(sizes(found := list(tensors)), found, strict=True):
        rows[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    header = json.dumps(rows).encode()
    return struct.pack("<Q", len(header)) + header


def files(config: Config, tensors: Iterable[Tensor], shards: int = 1) -> dict[str, bytes]:
    """A repository, whole or in shards with an index."""
    found, config_file = list(tensors), {"config.json": json.dumps(config).encode()}
    if shards == 1:
        return {**config_file, "model.safetensors": safetensors(found)}
    names = [f"model-{n + 1:05}-of-{shards:05}.safetensors" for n in range(shards)]
    parts = {name: found[n::shards] for n, name in enumerate(names)}
    index = {
        "metadata": {"total_size": sum(size for _, _, size in sizes(found))},
        "weight_map": {tensor[0]: name for name, part in parts.items() for tensor in part},
    }
    headers = {name: safetensors(part) for name, part in parts.items()}
    return {**config_file, "model.safetensors.index.json": json.dumps(index).encode(), **headers}
