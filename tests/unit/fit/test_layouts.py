"""Splits that cannot be, the order of those that can, and what would help when none fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.models import checkpoints, configs
from vllm_cluster.kernel.backends.seam import Degrees
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.serving.fit.kv_cache import BLOCK
from vllm_cluster.serving.fit.layouts import (
    UTILISATION,
    FitReport,
    GpuPool,
    Model,
    Workload,
    evaluate,
    min_gpus,
    report,
    split_problem,
    stage_bounds,
)
from vllm_cluster.serving.fit.model_config import model_config
from vllm_cluster.serving.fit.weights import spread, weigh

GB = 10**9


def model(config: configs.Config, *, pipelines: bool | None = True, total: int = 0, **changes: Any) -> Model:
    """A model with its tensors, or with so many bytes of them."""
    words = {**config, **changes}
    made = model_config(words)
    weights = spread(total, made) if total else weigh(checkpoints.sizes(checkpoints.llama(words)), made)
    return Model("model", weights, made, pipelines)


def splits(found: FitReport) -> list[tuple[int, int]]:
    """TP and PP of every layout."""
    return [(layout.tp, layout.pp) for layout in found.layouts]


# fault: serving/fit/layouts.py: if heads % tp and tp % heads: → if heads % tp and not tp:
@pytest.mark.parametrize(
    ("config", "tp", "pp", "said"),
    [
        (configs.LLAMA_8B, 8, 1, ""),
        (configs.LLAMA_8B, 3, 1, "TP=3 does not divide its 32 attention heads"),
        (configs.LLAMA_8B, 1, 33, "PP=33 is more than its 32 layers"),
        (configs.LLAMA_8B, 1, 32, ""),
        (configs.LLAMA_8B, 16, 2, ""),
        ({**configs.LLAMA_8B, "num_attention_heads": 48}, 12, 1, "TP=12 and its 8 KV heads do not divide one another"),
        (configs.DEEPSEEK_V3, 128, 1, ""),
    ],
)
def test_what_vllm_would_refuse(config: configs.Config, tp: int, pp: int, said: str) -> None:
    assert split_problem(model_config(config), Degrees(tp, pp)) == said


@pytest.mark.parametrize(
    ("config", "tp", "said"),
    [
        (configs.QWEN3_235B_FP8, 4, ""),
        (configs.QWEN3_235B_FP8, 64, "an expert (1536) at TP=64 is not a multiple of the quantisation block 128; --ep"),
        (configs.DEEPSEEK_V3, 16, ""),
        (configs.DEEPSEEK_V3, 32, "the MLP (18432) at TP=32"),
        # Its experts have 4 bits; the output of its attention has 16 groups.
        (configs.DEEPSEEK_V4, 16, ""),
        (configs.DEEPSEEK_V4, 32, "TP=32 does not divide the 16 groups"),
        ({**configs.LLAMA_70B, "quantization_config": {"quant_method": "awq", "group_size": 128}}, 8, ""),
        ({**configs.LLAMA_8B, "quantization_config": {"group_size": 128}, "intermediate_size": 14208}, 2, "the MLP"),
        ({**configs.LLAMA_8B, "quantization_config": {"group_size": -1}, "intermediate_size": 14208}, 2, ""),
        ({**configs.LLAMA_8B, "quantization_config": "fp8"}, 2, ""),
    ],
)
def test_blocks_of_quantised_weights_stay_whole(config: configs.Config, tp: int, said: str) -> None:
    found = evaluate(model(config, total=16 * GB), GpuPool((64,), 80 * GB), Workload(1024), tp, 1)
    assert found.problem.startswith(said) if said else not found.problem
    assert found.fits is not bool(said)


EIGHT = GpuPool((8,), 80 * GB)
CUT = "an expert (1536) at TP=8 is not a multiple of the quantisation block 128; --ep keeps experts whole"


# fault: serving/fit/layouts.py: else 1 if degrees.experts else → else
# fault: serving/fit/layouts.py: and model.vllm >= CUTS_BLOCKS) → )
def test_experts_are_split_or_dealt_whole() -> None:
    """Where they are split, vLLM from 0.32 on cuts blocks to fit a share; before, it refuses."""
    qwen = model(configs.QWEN3_235B_FP8, total=235 * GB)
    dealt = evaluate(qwen, EIGHT, Workload(1024), 8, 1, experts=True)
    assert (dealt.problem, dealt.fits, dealt.notes) == ("", True, dealt.notes)
    assert not any("block" in note for note in dealt.notes)
    cut = evaluate(qwen, EIGHT, Workload(1024), 8, 1)
    assert cut.problem == ""
    assert cut.notes[0].startswith(CUT)
    assert evaluate(replace(qwen, vllm=(0, 31)), EIGHT, Workload(1024), 8, 1).problem == CUT
    # Over TP × DP together.
    both = evaluate(replace(qwen, vllm=(0, 31)), EIGHT, Workload(1024), 4, 1, dp=2)
    assert both.problem.startswith("an expert (1536) at TP=4 × DP=2 is not")


# fault: serving/fit/layouts.py: -(-shape.experts // over) → shape.experts // over
def test_a_gpu_holds_its_part_of_the_experts() -> None:
    """Split or dealt over TP × DP, and all else once an engine; of 384 over 9 a GPU has 43."""
    kimi = {**configs.DEEPSEEK_V3, "n_routed_experts": 384, "num_attention_heads": 126, "num_key_value_heads": 126}
    layer = "model.layers.5.mlp"
    tensors = [(f"{layer}.experts.0.up_proj.weight", "BF16", 384 * GB), (f"{layer}.shared_experts.w", "BF16", 9 * GB)]
    made = model_config({**kimi, "quantization_config": None})
    moe, pool = Model("model", weigh(tensors, made), made), GpuPool((9,), 80 * GB)
    sizes = {
        (tp, dp, ep): evaluate(moe, pool, Workload(1024), tp, 1, dp=dp, experts=ep).weights_bytes / GB
        for tp, dp, ep in ((9, 1, False), (9, 1, True), (3, 3, True), (1, 9, False), (1, 9, True))
    }
    assert sizes == pytest.approx(
        {
            (9, 1, False): 384 / 9 + 1,
            (9, 1, True): 43 + 1,
            (3, 3, True): 43 + 3,
            (1, 9, False): 384 / 9 + 9,
            (1, 9, True): 43 + 9,
        }
    )


# fault: serving/fit/layouts.py: requests = dp * → requests =
def test_each_engine_has_a_kv_cache_of_its_own() -> None:
    """DeepSeek-V3 on two hosts of 8: TP divides no latent, so 16 engines hold 16 times the tokens of one."""
    deepseek, pool = model(configs.DEEPSEEK_V3, total=690 * GB), GpuPool((8, 8), 141 * GB)
    one = evaluate(deepseek, pool, Workload(32_768, 64), 8, 2)
    many = evaluate(deepseek, pool, Workload(32_768, 64), 1, 1, dp=16, experts=True)
    assert many.fits
    assert many.requests
    assert one.requests
    assert many.requests % 16 == 0
    assert many.requests > 3 * one.requests
    assert many.name == "TP=1 × PP=1 × DP=16 with EP"
    # One more than all engines hold must share one of them with those that are there.
    more = evaluate(deepseek, pool, Workload(32_768, many.requests + 1), 1, 1, dp=16, experts=True)
    assert more.max_context
    assert many.max_context
    assert more.max_context < 32_768 <= many.max_context


def test_a_report_of_several_engines_has_the_layouts_of_serve() -> None:
    found = report(
        model(configs.DEEPSEEK_V3, total=690 * GB), GpuPool((8, 8), 141 * GB), Workload(), dp=2, experts=True
    )
    assert splits(found) == [(8, 1), (4, 2), (2, 4), (1, 8)]
    assert "the layout that serve takes" in found.layouts[0].reason
    assert all((layout.dp, layout.ep) == (2, True) for layout in found.layouts)
    with pytest.raises(UsageError, match="--dp 17 needs 17 GPUs"):
        report(model(configs.LLAMA_8B), GpuPool((8, 8), 80 * GB), Workload(), dp=17)


# fault: serving/fit/layouts.py: if degrees.dp > 1 and not found: → if False:
def test_engines_that_hosts_cannot_hold_are_refused() -> None:
    found = evaluate(model(configs.LLAMA_8B), GpuPool((8, 6), 80 * GB), Workload(1024), 7, 1, dp=2)
    assert "attention heads" in found.problem
    found = evaluate(model(configs.LLAMA_8B), GpuPool((4, 2), 80 * GB), Workload(1024), 2, 1, dp=3)
    assert "every host gives the same number of GPUs" in found.problem


# fault: serving/fit/layouts.py: if degrees.experts and not shape.experts_used: → if False:
def test_a_model_without_experts_has_none_to_deal() -> None:
    llama = model(configs.LLAMA_8B)
    assert evaluate(llama, EIGHT, Workload(1024), 8, 1, experts=True).problem == "it has no experts: leave out --ep"
    alone = evaluate(llama, EIGHT, Workload(1024), 2, 1, dp=4)
    assert alone.fits
    assert "each of the 4 engines holds the whole model" in alone.notes[0]
    assert alone.weights_bytes == evaluate(llama, EIGHT, Workload(1024), 2, 1).weights_bytes


def test_the_fewest_gpus_come_first_then_every_other_way_with_its_reason() -> None:
    """Each is one that serve can make: several servers beside each other are not among them."""
    found = report(model(configs.LLAMA_405B), GpuPool((8, 8), 141 * GB, rdma=False), Workload(32768))
    assert splits(found) == [(8, 1), (8, 2), (16, 1), (4, 4), (2, 8), (1, 16)]
    assert found.recommended is found.layouts[0]
    assert all(layout.reason for layout in found.layouts)
    assert found.layouts[0].reason == "one node suffices, the others stay idle: --tp 8 --pp 1"
    assert "the layout that serve takes without --tp and --pp" in found.layouts[1].reason
    across = " ".join(found.layouts[2].notes)
    assert "each is held by 2 GPUs" in across
    assert "no RDMA found" in across


# fault: serving/fit/layouts.py: if small := smallest(model, gpus, workload, experts=experts): → if small := None:
def test_where_one_gpu_suffices_it_is_listed_first() -> None:
    found = report(model(configs.LLAMA_8B), GpuPool((4, 4), 80 * GB), Workload())
    assert splits(found)[:2] == [(1, 1), (4, 2)]


def test_where_some_nodes_suffice_the_others_are_spared() -> None:
    found = report(model(configs.LLAMA_405B), GpuPool((8,) * 5, 80 * GB), Workload(4096))
    assert splits(found)[0] == (8, 2)
    assert "2 of the 5 nodes suffice" in found.layouts[0].reason


def test_hosts_that_differ_are_laid_out_as_serve_does() -> None:
    found = report(model(configs.LLAMA_70B), GpuPool((8, 4), 20 * GB), Workload(8192))
    assert splits(found)[0] == (4, 3)
    assert found.layouts[0].notes == ("stages of 26 and 27 layers",)
    # TP=12 and TP=6 do not divide 64 heads.
    problems = {layout.tp: layout.problem for layout in found.layouts}
    assert "64 attention heads" in problems[12]
    assert "64 attention heads" in problems[6]


def test_the_next_best_is_taken_where_the_first_cannot_be() -> None:
    wide = model(configs.LLAMA_8B, num_attention_heads=20, num_key_value_heads=4, head_dim=128, hidden_size=2560)
    found = report(wide, GpuPool((8,), 80 * GB), Workload(1024))
    assert "20 attention heads" in found.layouts[1].problem
    assert found.recommended
    assert (found.recommended.tp, found.recommended.pp) == (1, 1)


def test_a_class_without_stages_is_not_split_into_them() -> None:
    found = report(model(configs.LLAMA_70B, pipelines=False), GpuPool((2, 2), 80 * GB), Workload(8192))
    assert any("SupportsPP" in layout.problem for layout in found.layouts)
    assert found.recommended
    assert found.recommended.pp == 1


def test_what_is_over_goes_to_the_later_stages_but_the_last() -> None:
    sizes = [end - begin for begin, end in stage_bounds(126, 4)]
    assert sizes == [31, 32, 32, 31]
    assert [end - begin for begin, end in stage_bounds(10, 4)] == [2, 3, 3, 2]
    assert [end - begin for begin, end in stage_bounds(7, 2)] == [4, 3]


def test_the_smallest_stage_bounds_the_cache() -> None:
    """The head of a large vocabulary takes from the last stage what the first still has."""
    heavy = model(configs.LLAMA_8B, vocab_size=2_000_000)
    layout = evaluate(heavy, GpuPool((2,), 40 * GB), Workload(8192), 1, 2)
    budget = int(UTILISATION * 40 * GB)
    assert layout.kv_cache_bytes < budget - layout.weights_bytes - layout.activation_bytes + 1
    assert layout.kv_cache_bytes == min(
        budget - heavy.weights.on_stage(16, 32, 1) - 1024 * 2_000_000 * 6 - (1 << 30), layout.kv_cache_bytes
    )


def test_a_shorter_context_is_enough_where_none_was_asked_for() -> None:
    gpus = GpuPool((1,), 24 * GB)
    found = report(model(configs.LLAMA_8B), gpus, Workload())
    assert found.recommended
    assert not found.recommended.fits
    assert found.recommended.max_context
    assert 10_000 < found.recommended.max_context < 131_072
    assert report(model(configs.LLAMA_8B), gpus, Workload(found.recommended.max_context)).recommended
    longer = report(model(configs.LLAMA_8B), gpus, Workload(found.recommended.max_context + BLOCK))
    assert longer.recommended is None


def test_the_nearest_changes_are_listed_and_each_helps() -> None:
    gpus, workload = GpuPool((1,), 24 * GB), Workload(30_000, 2)
    llama = model(configs.LLAMA_8B)
    found = report(llama, gpus, workload)
    assert found.recommended is None
    context, together, bits, more = found.suggestions
    assert report(llama, gpus, replace(workload, context=int(context.split("=")[1].split()[0]))).recommended
    assert together.startswith("1 request of")
    assert report(llama, gpus, replace(workload, concurrency=1)).recommended
    assert "fp8" in bits
    assert report(llama, gpus, replace(workload, kv_dtype="fp8")).recommended
    assert more == "1 node of 2 such GPUs"
    assert report(llama, replace(gpus, nodes=(2,)), workload).recommended


def test_what_no_number_of_gpus_holds() -> None:
    found = report(model(configs.LLAMA_405B), GpuPool((1,), 2 * GB), Workload(1024))
    assert (found.recommended, found.suggestions) == (None, ())


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([configs.LLAMA_8B, configs.DEEPSEEK_V3, configs.GEMMA3_27B, configs.QWEN3_NEXT]),
    st.lists(st.integers(1, 8), min_size=1, max_size=6),
    st.integers(8, 200),
    st.integers(1, 200_000),
    st.integers(1, 50),
)
def test_a_layout_that_is_reported_to_fit_does(
    config: configs.Config, nodes: list[int], memory: int, context: int, concurrency: int
) -> None:
    found = model(config, total=30 * GB)
    gpus, workload = GpuPool(tuple(nodes), memory * GB), Workload(context, concurrency)
    for layout in report(found, gpus, workload).layouts:
        assert layout.tp * layout.pp <= sum(nodes)
        assert bool(layout.problem) <= (not layout.fits)
        if layout.fits:
            assert layout.requests is not None
            assert layout.requests >= concurrency
            assert layout.max_context is not None
            assert layout.max_context >= min(context, 1)
            assert layout.tp * layout.pp * memory * GB >= found.weights.loaded
        if layout.max_context:
            again = evaluate(found, gpus, Workload(layout.max_context, concurrency), layout.tp, layout.pp)
            assert again.fits
    assert min_gpus(found, memory * GB, workload) >= 1
