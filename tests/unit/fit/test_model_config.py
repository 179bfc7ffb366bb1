"""Each family's words for its layers, and configs that are broken, old or hostile."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.models import configs
from vllm_cluster.kernel.backends.seam import Degrees
from vllm_cluster.serving.fit.kv_cache import Layer
from vllm_cluster.serving.fit.layouts import GpuPool, Model, Workload, evaluate, split_problem
from vllm_cluster.serving.fit.model_config import model_config
from vllm_cluster.serving.fit.weights import WeightBytes, spread, weigh
from vllm_cluster.wire.safetensors import tensors

LLAMA = configs.LLAMA_8B


def kinds(**changes: Any) -> str:
    """The layers of a Llama with other words in its config: f full, w window, s state, b both, - nothing kept."""
    found = model_config({**LLAMA, "num_hidden_layers": 6, **changes})
    marks = {(True, False): "f", (True, True): "w", (False, False): "-"}
    return "".join(
        ("b" if layer.heads else "s") if layer.state else marks[bool(layer.heads), bool(layer.window)]
        for layer in found.layers
    )


MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_d_conv": 4}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "ffffff"),
        ({"sliding_window": 1024}, "wwwwww"),
        ({"sliding_window": None}, "ffffff"),
        ({"sliding_window": 1024, "use_sliding_window": False}, "ffffff"),
        ({"sliding_window": 1024, "max_window_layers": 4}, "ffffww"),
        ({"sliding_window": 1024, "sliding_window_pattern": 3}, "wwfwwf"),
        ({"sliding_window": 1024, "model_type": "gemma2"}, "wfwfwf"),
        ({"sliding_window": 1024, "layer_types": ["sliding_attention", "full_attention"] * 3}, "wfwfwf"),
        ({"attention_chunk_size": 8192, "layer_types": ["chunked_attention"] * 5 + ["full_attention"]}, "wwwwwf"),
        ({"layer_types": ["mamba"] * 5 + ["attention"], **MAMBA}, "sssssf"),
        ({"layers_block_type": ["attention", "mamba"] * 3, **MAMBA}, "fsfsfs"),
        ({"hybrid_override_pattern": "M-M*E-", **MAMBA}, "s-sf--"),
        ({"num_kv_shared_layers": 2}, "ffff--"),
        ({"attn_layer_period": 3, "attn_layer_offset": 1, **MAMBA, "mamba_n_heads": None, "mamba_expand": 2}, "sfssfs"),
        ({"layers_block_type": ["mamba", "hybrid", "mamba"] * 2, **MAMBA}, "sbssbs"),
        (MAMBA, "bbbbbb"),
        ({"attention_chunk_size": 8192, "no_rope_layers": []}, "wwwfww"),
        ({"attention_chunk_size": 8192, "no_rope_layers": [1, 0] * 3}, "wfwfwf"),
        ({"sliding_window": 128, "hybrid_layer_pattern": [0, 1, 1, 0, 1, 0]}, "fwwfwf"),
    ],
)
def test_each_family_has_its_own_keys(changes: dict[str, Any], expected: str) -> None:
    assert kinds(**changes) == expected


# fault: serving/fit/kv_cache.py: tokens = min(tokens, window - 1 + steps * BATCHED) + block → tokens += block
# fault: serving/fit/kv_cache.py: max(some) < 1.5 * min(some) else → max(some) else
def test_a_window_stops_growing() -> None:
    layers = model_config(configs.GEMMA3_27B).layers
    assert sum(layer.window is None for layer in layers) == 10
    short, long = (sum(layer.held(tokens, 1, 2) for layer in layers) for tokens in (4096, 131072))
    # A window begins anywhere in a block: one more of 16 tokens.
    assert short == pytest.approx((10 * 4096 + 60 * (4096 + 16)) * 16 * 256 * 2, abs=62)
    # 1023 tokens of the window, two steps of 8192 in flight, and one block more since a window begins anywhere.
    # The 52 layers with a window are in 6 groups of 10, as the 10 without are one.
    assert long == pytest.approx((10 * 131072 + 60 * (17407 + 16 + 1)) * 16 * 256 * 2, abs=62)
    assert sum(layer.held(131072, 1, 2, 3) for layer in layers) - long == pytest.approx(
        60 * 8192 * 16 * 256 * 2, abs=62
    )


# fault: serving/fit/kv_cache.py: block, state = self.page.block(tp, kv_bytes) → block, _ = self.page.block(tp, kv_bytes)
def test_linear_attention_keeps_a_state() -> None:
    """In blocks as long as a state needs: 544 tokens of 2 KV heads of 256 hold 1,097,728 bytes."""
    layers = model_config(configs.QWEN3_NEXT).layers
    assert sum(bool(layer.heads) for layer in layers) == 12
    (state,) = {layer for layer in layers if not layer.heads}
    assert state.state == 32 * 128 * 128 * 2 + 8192 * 3 * 2
    assert state.held(16, 1, 2) == state.held(262144, 1, 2) == 2 * 544 * 2 * 512 * 2
    assert state.held(16, 2, 2) == state.held(16, 1, 2) // 2
    full = next(layer for layer in layers if layer.heads)
    assert [full.held(tokens, 1, 2) // 1_114_112 for tokens in (16, 544, 545)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("name", "held"),
    [
        # 18 layers with a window of 128 and 18 without, 8 KV heads of 64.
        ("gpt-oss", {32_768: 1_817_247_744, 131_072: 5_441_126_400}),
        ("gemma3", {32_768: 11_248_599_040, 131_072: 19_301_662_720}),
        ("mimo", {32_768: 4_563_025_920, 131_072: 6_827_950_080}),
        ("qwen3-moe", {32_768: 6_308_233_216, 131_072: 25_232_932_864}),
        ("deepseek-v3", {32_768: 2_302_672_896, 131_072: 9_210_691_584}),
    ],
)
def test_a_request_takes_what_vllm_computes(name: str, held: dict[int, int]) -> None:
    """As vLLM 0.32's own planner has it for these layers at TP=1: blocks of a request × bytes of a block."""
    alternating = ["sliding_attention", "full_attention"] * 18
    oss = {"model_type": "gpt_oss", "head_dim": 64, "sliding_window": 128, "layer_types": alternating}
    config = {
        "gpt-oss": {**LLAMA, **oss, "num_hidden_layers": 36},
        "gemma3": configs.GEMMA3_27B,
        "mimo": configs.MIMO_V2,
        "qwen3-moe": configs.QWEN3_235B_FP8,
        "deepseek-v3": configs.DEEPSEEK_V3,
    }[name]
    layers = model_config(config).layers
    assert {n: sum(layer.held(n, 1, 2) for layer in layers) for n in held} == pytest.approx(held, rel=0.001)


# fault: serving/fit/model_config.py: heads * head * head * 4 + 3 → heads * head * head * 2 + 3
@pytest.mark.parametrize(
    ("config", "held"),
    [
        (configs.MINIMAX_M2, 1_040_187_392),
        (configs.MIXTRAL_8X22B, 939_524_096),
        # 576 of the latent in 16 bits, and 132 bytes of the index.
        (configs.GLM_5, 2_944_401_408 + 337_379_328),
        # 24 layers with a latent, in blocks of 768 tokens: one holds a state of 3 × 4608 in 16 bits and 12 × 128 × 128
        # in 32. Of the 69 layers with two of them there are 3 groups of 24.
        (configs.KIMI_K3, (24 * 43 + 3 * 24 * 2) * 768 * 576 * 2),
    ],
    ids=["minimax-m2", "mixtral", "glm-5", "kimi-k3"],
)
def test_a_rank_of_eight_holds_what_vllm_computes(config: configs.Config, held: int) -> None:
    """32,768 tokens at TP=8, from the pages and shapes of states of vLLM 0.32's own classes."""
    made = model_config(config)
    assert sum(layer.held(32_768, 8, 2) for layer in made.layers) == pytest.approx(held, abs=69)
    assert not made.notes


# fault: serving/fit/model_config.py: optional(config, "window KV heads") or → 0 or
def test_window_layers_have_heads_of_their_own() -> None:
    """MiMo-V2: 9 layers attend to everything, with 4 KV heads, and 39 to a window of 128, with 8."""
    layers = model_config(configs.MIMO_V2).layers
    assert [layer.heads for layer in layers[:6]] == [4, 8, 8, 8, 8, 4]
    assert sum(layer.window is None for layer in layers) == 9
    held = {tokens: sum(layer.held(tokens, 1, 2) for layer in layers) / 1e9 for tokens in (32_768, 262_144)}
    # 127 of the window and two steps of 8192 in flight; the 39 with a window are in 5 groups of 9.
    window = 45 * (127 + 16_384 + 16 + 1) * 8 * 320 * 2
    assert held == pytest.approx({n: (9 * n * 4 * 320 * 2 + window) / 1e9 for n in (32_768, 262_144)}, abs=0.001)


@pytest.mark.parametrize(
    "words", [{"layers_block_type": ["mamba", "attention"] * 3}, {"hybrid_override_pattern": "M*M*M*"}]
)
def test_layers_that_are_only_listed_are_counted(words: dict[str, Any]) -> None:
    assert kinds(num_hidden_layers=None, **words, **MAMBA) == "sfsfsf"


def test_nemotron_has_layers_that_keep_nothing() -> None:
    made = model_config(configs.NEMOTRON_3)
    assert len(made.layers) == 108
    assert not made.notes
    # In 48 layers three states of 256 heads × 64 × 128 in 32 bits, with 3 inputs of a convolution; a block of the 12
    # others, of 2 KV heads, has 8304 tokens to hold one.
    assert 8304 * 2 * 256 * 2 - (256 * 64 * 128 * 4 + 3 * (256 * 64 + 2 * 128 * 8) * 2) < 16 * 2 * 256 * 2
    assert sum(layer.held(4096, 1, 2) for layer in made.layers) == (12 + 48 * 3) * 8304 * 2 * 256 * 2


@pytest.mark.parametrize("kind", ["qwen3_5_moe_text", "qwen3_vl_moe_text", "llama4_text", "gemma3_text"])
def test_the_language_part_of_a_known_family_is_known(kind: str) -> None:
    nested = {"model_type": "outer", "text_config": {**LLAMA, "model_type": kind}}
    assert not model_config(nested).notes


# fault: serving/fit/model_config.py: rows += [Rows(4, part, 8)] if fine else [] → rows += []
def test_compressed_attention_takes_the_widest_block_for_each_of_its_caches() -> None:
    """DeepSeek-V4: rows for 4 and for 128 tokens, an index, a window of 128, and the tokens that are not yet a row."""
    made = model_config(configs.DEEPSEEK_V4)
    held = {tokens: sum(layer.held(tokens, 1, 2) for layer in made.layers) for tokens in (4096, 32_768, 131_072)}
    # As vLLM 0.32 plans it: the widest group has the rows of all layers.
    widest = 30 * (37_440 + 8_640) + 31 * 1_728
    blocks = {tokens: tokens // 256 for tokens in held}
    assert held[131_072] - held[32_768] == pytest.approx((blocks[131_072] - blocks[32_768]) * widest, rel=1e-4)
    assert held[32_768] == pytest.approx(9_778_942_080, rel=1e-3)
    assert "an estimate" in made.notes[0]
    # It is latent: no GPU holds less, and its dtype is its own.
    assert [made.layers[2].held(4096, tp, kv_bytes) for tp, kv_bytes in ((8, 2), (1, 1))] == [
        made.layers[2].held(4096, 1, 2)
    ] * 2


# fault: serving/fit/model_config.py: yield groups if groups > 1 else 0, → yield 0,
@pytest.mark.parametrize(
    ("changes", "tp", "said"),
    [
        ({"n_groups": 8}, 16, "TP=16 does not divide the 8 groups of its Mamba layers"),
        ({"n_groups": 1}, 16, ""),
        ({"n_groups": 8, "mamba_num_heads": 24}, 16, "TP=16 does not divide the 24 heads of its linear attention"),
        ({"n_groups": 8, "hybrid_override_pattern": "*-*-"}, 16, ""),
    ],
)
def test_tp_divides_what_linear_attention_is_made_of(changes: dict[str, Any], tp: int, said: str) -> None:
    """As vLLM 0.32 asserts; what is not used is not asked."""
    nemotron = {**configs.NEMOTRON_3, "num_key_value_heads": 8, "layers_block_type": None, "num_hidden_layers": 4}
    made = model_config({**nemotron, "hybrid_override_pattern": "M-*-", **changes})
    assert split_problem(made, Degrees(tp, 1)) == said


def test_kimi_counts_its_layers_from_one() -> None:
    linear = {"full_attn_layers": [2, 6], "num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4}
    assert kinds(model_type="kimi_linear", linear_attn_config=linear) == "sfsssf"


def test_an_unknown_state_is_noted() -> None:
    found = model_config({**LLAMA, "layer_types": ["conv"] * 16 + ["full_attention"] * 16})
    assert any("16 layers" in note for note in found.notes)


def test_sparse_attention_keeps_an_index_too() -> None:
    config = {**configs.DEEPSEEK_V3, "model_type": "deepseek_v32", "index_head_dim": 128, "index_topk": 2048}
    (layer,) = set(model_config(config).layers)
    assert layer.held(16, 8, 2) == 16 * (576 * 2 + 132)
    # In 8 bits a row of sparse attention has 656 bytes: scales, and the rotary part in 16 bits.
    assert layer.held(16, 8, 1) == 16 * (656 + 132)


@pytest.mark.parametrize(
    ("changes", "heads"),
    [
        ({"num_key_value_heads": None}, 32),
        ({"num_key_value_heads": None, "num_kv_heads": 4}, 4),
        ({"num_key_value_heads": [2, 8, 4]}, 8),
        ({"num_key_value_heads": None, "attn_config": {"kv_n_heads": 4}}, 4),
        ({"num_key_value_heads": None, "multi_query": True, "num_kv_heads": 32}, 1),
        ({"num_key_value_heads": None, "multi_query": True, "new_decoder_architecture": True, "num_kv_heads": 8}, 8),
    ],
)
def test_kv_heads_have_many_names(changes: dict[str, Any], heads: int) -> None:
    assert model_config({**LLAMA, **changes}).layers[0] == Layer(heads, 256)


@pytest.mark.parametrize(
    ("stated", "dtype", "noted"),
    [
        ({"quant_method": "fp8"}, "auto", False),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": None}, "auto", False),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8", False),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, "fp8", False),
        ({"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}}, "fp8", False),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "INT8"}, "auto", False),
        (
            {"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}},
            "fp8",
            False,
        ),
        (
            {"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": True}},
            "auto",
            False,
        ),
        ({"quant_method": "modelopt_fp4", "kv_cache_scheme": {"num_bits": 4, "type": "float"}}, "fp8", True),
        ({"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": [], "type": {}}}, "auto", False),
        ("fp8", "auto", False),
    ],
)
# fault: serving/fit/layouts.py: kv_dtype=self.shape.kv_dtype) if workload.kv_dtype == "auto" → kv_dtype="auto") if workload.kv_dtype == "auto"
def test_a_checkpoint_names_the_dtype_of_its_kv_cache(stated: object, dtype: str, noted: bool) -> None:
    made = model_config({**LLAMA, "quantization_config": stated})
    assert (made.kv_dtype, bool(made.notes)) == (dtype, noted)
    model = Model("llama", spread(16_060_522_496, made), made)
    tokens = {
        kind: evaluate(model, GpuPool((1,), 80 << 30), Workload(4096, kv_dtype=kind), 1, 1).kv_cache_tokens or 0
        for kind in ("auto", "fp8", "bfloat16")
    }
    assert tokens["auto"] == tokens["fp8" if dtype == "fp8" else "bfloat16"]
    assert tokens["fp8"] == pytest.approx(2 * tokens["bfloat16"], abs=2)


# fault: serving/fit/config_keys.py: if _OF_CACHES.search(name) and not _OF_OTHERS.search(name) → if _OF_CACHES.search(name)
def test_an_untried_type_is_noted() -> None:
    assert not model_config(LLAMA).notes
    (note,) = model_config({**LLAMA, "model_type": "zebra"}).notes
    assert note == "the model type zebra is not known: its KV cache is an estimate, that of ordinary attention"
    words = {"swa_sinks": 4, "kv_shared": [1], "rope_kv_theta": 1e6, "sparse_mode": "x", "use_window": False}
    (note,) = model_config({**LLAMA, "model_type": "zebra", **words}).notes
    assert note.endswith("ordinary attention; not read: kv_shared, swa_sinks")
    many = {f"kv_{number}": 1 for number in range(100)} | {"kv_" + "x" * 10_000: 1}
    assert len(model_config({**LLAMA, "model_type": "zebra", **many}).notes[0]) < 300


# fault: serving/fit/model_config.py: for count in (heads, optional(config, "window heads")): → for count in (heads,):
def test_a_part_for_the_layers_with_a_window_is_read() -> None:
    """Step 3.5: those have 96 heads and the others 64, and all 8 for KV."""
    other = {
        "attention_type": "sliding_attention",
        "num_attention_heads": 96,
        "num_attention_groups": 8,
        "head_dim": 128,
    }
    step = {
        "model_type": "step3p5",
        "num_attention_heads": 64,
        "num_key_value_heads": None,
        "num_attention_groups": 8,
        "head_dim": 128,
        "sliding_window": 512,
        "layer_types": ["full_attention", *["sliding_attention"] * 3] * 9,
        "attention_other_setting": other,
    }
    made = model_config({**LLAMA, **step})
    assert [(layer.heads, layer.window) for layer in made.layers[:2]] == [(8, None), (8, 512)]
    assert made.notes == ()
    assert split_problem(made, Degrees(64, 1)) == "TP=64 does not divide its 96 attention heads"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_hidden_layers": None}, "no num_hidden_layers"),
        ({"num_attention_heads": None}, "no num_attention_heads"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers is 'many'"),
        ({"num_hidden_layers": 10**7}, "10000000 layers"),
        ({"hidden_size": -4096}, "hidden_size is '-4096'"),
        ({"vocab_size": 1e9}, "vocab_size"),
        ({"vocab_size": True}, "vocab_size"),
        ({"vocab_size": {}}, "vocab_size"),
        ({"is_encoder_decoder": True}, "encoder"),
        ({"layer_types": ["full_attention"]}, "1 of its 32 layers"),
        ({"compress_ratios": [4, 128]}, "compress_ratios are not 32 of"),
        ({"compress_ratios": [[], *[64] * 31]}, "compress_ratios are not 32 of"),
        ({"num_key_value_heads": 10**30}, "num_key_value_heads"),
    ],
)
def test_a_config_with_a_missing_or_invalid_value_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        model_config({**LLAMA, **changes})


def test_each_tensor_has_its_place() -> None:
    found = weigh(
        [
            ("model.embed_tokens.weight", "BF16", 100),
            ("model.layers.0.self_attn.q_a_proj.weight", "BF16", 7),
            ("model.layers.60.mlp.experts.9.up_proj.weight", "F8_E4M3", 40),
            ("model.layers.60.mlp.experts.9.up_proj.weight_scale_inv", "F32", 4),
            ("model.layers.61.shared_head.head.weight", "BF16", 1000),
            ("mtp.layers.0.mlp.up_proj.weight", "BF16", 2000),
            ("visual.blocks.3.attn.qkv.weight", "F32", 16),
            ("model.norm.weight", "BF16", 1),
            ("lm_head.weight", "BF16", 90),
        ],
        model_config(configs.DEEPSEEK_V3),
    )
    assert found.stored == {"BF16": 3198, "F8_E4M3": 40, "F32": 20}
    assert (found.first, found.last, found.unused) == (WeightBytes(100), WeightBytes(90), 3000)
    assert (found.layers[0], found.layers[60]) == (WeightBytes(0, 7), WeightBytes(experts=44))
    # Stored in 32 bits, served in 16.
    assert found.everywhere == WeightBytes(8, 1)
    assert found.on_stage(0, 30, 2) == 50 + 7 + 4 + 1
    assert found.on_stage(30, 61, 2) == 45 + 22 + 4 + 1


# fault: serving/fit/weights.py: (first or self.last.shared) else self.first → (first or not self.last.shared) else self.first
def test_a_tied_embedding_is_on_both_ends() -> None:
    made = model_config({**LLAMA, "num_hidden_layers": 2, "tie_word_embeddings": True})
    names = ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"]
    found = weigh([(name, "BF16", 100) for name in names], made)
    assert [found.on_stage(*stage, 1) for stage in ((0, 1), (1, 2), (0, 2))] == [200, 200, 300]


def test_where_only_the_sum_is_known() -> None:
    found = spread(16_060_522_496, model_config(LLAMA))
    assert found.loaded == pytest.approx(16_060_522_496, rel=0.0001)
    assert found.first == found.last == WeightBytes(128256 * 4096 * 2)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a": 1}',
        b'{"a": {"dtype": "BF16"}}',
        b'{"a": {"data_offsets": [0, "9"]}}',
        b'{"a": {"data_offsets": [0, true]}}',
        b'{"a": {"data_offsets": [9, 0]}}',
        b'{"a": {"data_offsets": [-9, 0]}}',
        b'{"a": {"data_offsets": [0, 1' + b"0" * 30 + b"]}}",
        b'{"a": {"data_offsets": [0, 9], "shape": [' + b"[]," * 9000 + b"[]]}}",
        b'{"a": {"data_offsets": [0, 9]} "b": 1}',
        b'{"a": {"data_offsets": [0, 9]}',
        b'{1: {"data_offsets": [0, 9]}}',
    ],
)
def test_invalid_headers_are_refused(header: bytes) -> None:
    with pytest.raises(ValueError, match="header"):
        list(tensors(header))
