"""The parts of published config.json files that determine how large a model is."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]


def llama(hidden: int, layers: int, heads: int, mlp: int, **changes: Any) -> Config:
    """A Llama 3.1."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "max_position_embeddings": 131072,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": 8,
        "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 128256,
        **changes,
    }


LLAMA_8B = llama(4096, 32, 32, 14336)
LLAMA_70B = llama(8192, 80, 64, 28672)
LLAMA_405B = llama(16384, 126, 128, 53248)

DEEPSEEK_V3: Config = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "n_routed_experts": 256,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {"fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]},
    "tie_word_embeddings": False,
    "v_head_dim": 128,
    "vocab_size": 129280,
}

GEMMA3_27B: Config = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {
        "head_dim": 128,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "max_position_embeddings": 131072,
        "model_type": "gemma3_text",
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "sliding_window": 1024,
        "vocab_size": 262208,
    },
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
}

QWEN3_NEXT: Config = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": 512,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
}

QWEN3_235B_FP8: Config = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "mlp_only_layers": [],
    "moe_intermediate_size": 1536,
    "num_attention_heads": 64,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 94,
    "num_key_value_heads": 4,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "vocab_size": 151936,
}
MIMO_V2: Config = {
    "architectures": ["MiMoV2FlashForCausalLM"],
    "model_type": "mimo_v2_flash",
    "attention_chunk_size": 128,
    "head_dim": 192,
    "hidden_size": 4096,
    "hybrid_layer_pattern": [0, *[1] * 4, *([0, *[1] * 5] * 7), 0],
    "intermediate_size": 16384,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_attention_heads": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "sliding_window": 128,
    "swa_head_dim": 192,
    "swa_num_attention_heads": 64,
    "swa_num_key_value_heads": 8,
    "swa_v_head_dim": 128,
    "v_head_dim": 128,
    "vocab_size": 152576,
}

# 12 of its 108 layers attend, 48 are Mamba 2, and 48 hold experts.
NEMOTRON_3: Config = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "conv_kernel": 4,
    "head_dim": 128,
    "hidden_size": 8192,
    "intermediate_size": 5120,
    "layers_block_type": [*["mamba", "moe"] * 3, "mamba", "attention", "moe"] * 12,
    "mamba_head_dim": 64,
    "mamba_num_heads": 256,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": 5120,
    "n_groups": 8,
    "n_routed_experts": 512,
    "num_attention_heads": 64,
    "num_experts_per_tok": 22,
    "num_key_value_heads": 2,
    "ssm_state_size": 128,
    "vocab_size": 131072,
}

DEEPSEEK_V4: Config = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    # One more than layers: that of the prediction of several tokens.
    "compress_ratios": [128, 128, *[4, 128] * 29, 4, 0],
    "expert_dtype": "fp4",
    "head_dim": 512,
    "hidden_size": 7168,
    "index_head_dim": 128,
    "index_topk": 1024,
    "max_position_embeddings": 1048576,
    "moe_intermediate_size": 3072,
    "n_routed_experts": 384,
    "num_attention_heads": 128,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 61,
    "num_key_value_heads": 1,
    "o_groups": 16,
    "o_lora_rank": 1024,
    "qk_rope_head_dim": 64,
    "quantization_config": {"fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]},
    "sliding_window": 128,
    "vocab_size": 129280,
}

MINIMAX_M2 = {
    "architectures": ["MiniMaxM2ForCausalLM"],
    "model_type": "minimax_m2",
    "head_dim": 128,
    "hidden_size": 3072,
    "intermediate_size": 1536,
    "max_position_embeddings": 196608,
    "num_attention_heads": 48,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 62,
    "num_key_value_heads": 8,
    "num_local_experts": 256,
    "rotary_dim": 64,
    "tie_word_embeddings": False,
    "vocab_size": 200064,
}
MIXTRAL_8X22B = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "hidden_size": 6144,
    "intermediate_size": 16384,
    "max_position_embeddings": 65536,
    "num_attention_heads": 48,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 56,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
GLM_5 = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "first_k_dense_replace": 3,
    "head_dim": 64,
    "hidden_size": 6144,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "index_topk": 2048,
    "intermediate_size": 12288,
    "kv_lora_rank": 512,
    "max_position_embeddings": 202752,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 78,
    "num_key_value_heads": 64,
    "q_lora_rank": 2048,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "tie_word_embeddings": False,
    "v_head_dim": 256,
    "vocab_size": 154880,
}
KIMI_K3 = {
    "architectures": ["KimiK3ForConditionalGeneration"],
    "model_type": "kimi_k3",
    "text_config": {
        "model_type": "kimi_linear",
        "first_k_dense_replace": 1,
        "hidden_size": 7168,
        "intermediate_size": 33792,
        "kv_lora_rank": 512,
        "linear_attn_config": {
            "full_attn_layers": [*range(4, 93, 4), 93],
            "head_dim": 128,
            "kda_layers": [layer for layer in range(1, 93) if layer % 4],
            "num_heads": 96,
            "short_conv_kernel_size": 4,
        },
        "max_position_embeddings": 1048576,
        "moe_intermediate_size": 3072,
        "num_attention_heads": 96,
        "num_experts": 896,
        "num_experts_per_token": 16,
        "num_hidden_layers": 93,
        "num_key_value_heads": 96,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "tie_word_embeddings": False,
        "v_head_dim": 128,
        "vocab_size": 163840,
    },
}

# What `tests.gpu.kv_cache` has measured on real GPUs, by the names in its recordings.
MEASURED = {"llama-8b": LLAMA_8B, "llama-70b": LLAMA_70B}
