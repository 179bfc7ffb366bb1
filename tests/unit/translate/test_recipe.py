"""What a recipe of vLLM's book asks for: the flags of its parts in their order, on the hosts that there are."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from tests.support.depth import cases
from tests.support.paths import FIXTURES
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.serving.translate.options import Translation
from vllm_cluster.serving.translate.recipe import _one_of, translate_recipe
from vllm_cluster.serving.translate.recipe_hosts import RecipeHosts
from vllm_cluster.serving.translate.text import translate

TEXT = (FIXTURES / "recipe.yaml").read_text()
H200 = RecipeHosts((8, 8), 141 * 10**9, True, "NVIDIA H200")
ONE = replace(H200, gpus=(8,))
H100 = replace(H200, memory_bytes=80 * 10**9, name="NVIDIA H100 80GB HBM3")
SPARKS = RecipeHosts((1, 1), 120 * 10**9, False, "NVIDIA GB10")
BASE = "--trust-remote-code --max-model-len 32768"
TOOLS = "--enable-auto-tool-choice --tool-call-parser large --reasoning-parser large"


def asked(hosts: RecipeHosts, text: str = TEXT, **chosen: str) -> Translation:
    """What a recipe asks for."""
    return translate_recipe(text, "large.yaml", hosts, **chosen)


def facts(found: Translation) -> tuple[Any, ...]:
    """Model, degrees and experts, and the flags as one line."""
    return found.model, (found.tp, found.pp, found.dp, found.expert_parallel), shlex.join(found.flags)


# fault: serving/translate/recipe.py: yield from own.get("extra_args").words() → yield from ()
# fault: serving/translate/recipe.py: why = (PIPELINE,), f → why = order, f
# fault: serving/translate/recipe.py: if kind.value is not None: → if kind.value is None:
# fault: serving/translate/recipe.py: yield from (own if own and replaced else feature) → yield from (feature)
@pytest.mark.parametrize(
    ("hosts", "chosen", "expected"),
    [
        (H200, {}, ("org/large-moe", (16, 1, 1, False), f"{BASE} --moe-backend book {TOOLS}")),
        (replace(H200, rdma=False), {}, ("org/large-moe", (8, 2, 1, False), f"{BASE} --moe-backend book {TOOLS}")),
        (
            H100,
            {},
            ("org/large-moe-FP8", (16, 1, 1, False), f"{BASE} --kv-cache-dtype fp8 --moe-backend book {TOOLS}"),
        ),
        (
            H200,
            {"variant": "fp8", "strategy": "multi_node_dep"},
            (
                "org/large-moe-FP8",
                (1, 1, 16, True),
                f"{BASE} --kv-cache-dtype fp8 --of-the-card 1 --all2all-backend one {TOOLS}",
            ),
        ),
        (
            ONE,
            {"strategy": "single_node_tep", "variant": "default"},
            ("org/large-moe", (8, 1, 1, True), f"{BASE} --moe-backend book {TOOLS} --pinned"),
        ),
        (
            RecipeHosts((8,), 180 * 10**9, False, "NVIDIA B200"),
            {"variant": "nvfp4"},
            ("org/large-moe-NVFP4", (4, 1, 1, False), f"{BASE} {TOOLS}r"),
        ),
        (SPARKS, {"variant": "nvfp4"}, ("org/large-moe-NVFP4", (1, 2, 1, False), f"{BASE} {TOOLS}r")),
        (
            RecipeHosts((2, 2), 8 * 10**9, False, "cpu"),
            {},
            ("org/large-moe", (2, 2, 1, False), f"{BASE} {TOOLS}"),
        ),
    ],
)
def test_the_hosts_decide_on_variant_strategy_and_flags(
    hosts: RecipeHosts, chosen: dict[str, str], expected: tuple[Any, ...]
) -> None:
    assert facts(asked(hosts, **chosen)) == expected


# fault: serving/translate/recipe.py: if self._floor(one) <= self._hosts.total → if True
def test_the_choice_is_shown_with_what_else_there_is() -> None:
    variant, strategy, version = asked(H100).rows[:3]
    assert (variant.given, variant.kind) == ("variant fp8", "chosen")
    assert variant.why == (
        "the first one that these GPUs hold; default: bf16 wants 1500 GB, here are 1280; "
        "--variant has also: default, nvfp4"
    )
    assert strategy.given == "strategy multi_node_tp"
    assert strategy.why == (
        "2 hosts; --strategy has also: single_node_tp, single_node_tep, multi_node_dep, multi_node_tp_pp"
    )
    assert version.given == "min_vllm_version 0.33.0"
    short = TEXT.replace("strategy_min_gpus:\n", "strategy_min_gpus:\n  multi_node_tp: 32\n")
    assert asked(H100, short).rows[1].given == "strategy multi_node_dep"
    assert asked(H100, f"{TEXT}default_strategy: single_node_tp\n").rows[1].given == "strategy multi_node_tp"
    assert asked(SPARKS, f"{TEXT}default_strategy: single_node_tep\n").rows[1].given == "strategy multi_node_tep"


def test_variables_belong_to_the_inventory() -> None:
    found = asked(H100)
    assert found.variables == {"VLLM_BOOK": "1", "VLLM_OF_HOPPER": "1"}
    assert [row.given for row in found.rows if row.kind == "variable"] == ["VLLM_BOOK=1", "VLLM_OF_HOPPER=1"]


@pytest.mark.parametrize(("gpu", "expected"), [("NVIDIA H100", "mtp"), ("NVIDIA GeForce RTX 4090", "draft")])
def test_of_several_modes_one_that_the_gpus_may_have(gpu: str, expected: str) -> None:
    text = TEXT.replace("opt_in_features: [spec_decoding]\n", "")
    words = shlex.join(asked(replace(H100, name=gpu), text, variant="fp8").flags)
    assert f'--speculative-config \'{{"{"method" if expected == "mtp" else "model"}"' in words


# fault: serving/translate/recipe.py: if asked in known: → if True:
@pytest.mark.parametrize(
    ("chosen", "error"),
    [
        ({"variant": "fp4"}, "--variant: large.yaml has no variant fp4: it has default, fp8, nvfp4"),
        (
            {"strategy": "multi_node_tep"},
            "--strategy: large.yaml has no strategy multi_node_tep: it has single_node_tp, single_node_tep, "
            "multi_node_tp, multi_node_dep, multi_node_tp_pp",
        ),
        ({"strategy": "pd_cluster"}, "--strategy: pd_cluster: prefill and decode in pools of their own are not served"),
    ],
)
def test_an_unknown_word_is_refused_with_the_list(chosen: dict[str, str], error: str) -> None:
    with pytest.raises(UsageError) as refused:
        asked(H100, **chosen)
    assert refused.value.message == error


# fault: serving/translate/recipe.py: {printable(shell_line([near]))} → {printable(near)}
def test_a_word_of_a_recipe_is_one_word_of_the_remedy() -> None:
    with pytest.raises(UsageError) as refused:
        _one_of("variant", "nvfpx;touch", ("nvfp;touch RAN",), "FILE")
    assert refused.value.hint == "use --variant 'nvfp;touch RAN'"


BOMB = "model: {}\na: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdef", "bcdefg", strict=True)
)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "large.yaml:1: must be a mapping"),
        ("- a\n", "large.yaml:1: must be a mapping"),
        ("model: [\n", "large.yaml:2: not YAML: "),
        ("model: {}\nmodel: {}\n", "large.yaml:2: model: written twice, first on line 1; keep one"),
        (BOMB, ": aliases make this file too large"),
        ("a: &a [*a]\n", "large.yaml:1: a[0]: an alias to something that it is itself part of"),
        ("x: !!python/object:os.system 1\n", "large.yaml:1: x: the tag"),
        ("#" * 256_001, "large.yaml: longer than 256 kB"),
        (
            "model: {model_id: 5}\ncompatible_strategies: [single_node_tp]",
            "1: model.model_id: must be text, got a number",
        ),
        ("model: {}\ncompatible_strategies: [single_node_tp]", "1: model.model_id: must be text, got nothing"),
        ("model: []\ncompatible_strategies: [single_node_tp]\n", "1: model: must be a mapping, got a list"),
        ("model: {model_id: m}\n", "1: compatible_strategies: must be a list of strategies, got nothing"),
        (
            "model:\n  model_id: m\n  base_args: --flag\ncompatible_strategies: [single_node_tp]\n",
            'large.yaml:3: model.base_args: must be a list, got text ("--flag")',
        ),
        (
            "model:\n  model_id: m\n  base_args: [[1]]\ncompatible_strategies: [single_node_tp]\n",
            "large.yaml:3: model.base_args[0]: must be text or a number, got a list",
        ),
        (
            "model: {model_id: m}\ncompatible_strategies: [pd_cluster]\n",
            "large.yaml:2: compatible_strategies: none of its strategies serves here (pd_cluster), got a list",
        ),
        (
            "model: {model_id: m}\ncompatible_strategies: [single_node_tp]\nstrategy_min_gpus: 64\n",
            "large.yaml:3: strategy_min_gpus: it wants 64 GPUs, here are 16",
        ),
        ("omni: {tasks: []}\nmodel: {}\n", "large.yaml:1: omni: vllm-omni serves this recipe"),
        (
            "model:\n  model_id: m\n  base_args: [--grpc]\ncompatible_strategies: [single_node_tp]\n",
            "large.yaml:3: --grpc cannot be served here",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_file_line_and_key(text: str, error: str) -> None:
    began = time.monotonic()
    with pytest.raises(UsageError) as refused:
        asked(H100, text)
    assert error in refused.value.message
    assert time.monotonic() - began < 20


def test_a_recipe_needs_the_hosts() -> None:
    with pytest.raises(UsageError, match=r"large\.yaml:49: a recipe, whose layout the hosts decide") as refused:
        translate(TEXT, "large.yaml")
    assert refused.value.hint == "vcluster serve --from RECIPE"


WHOLE = YAML(typ="safe").load(TEXT.replace("2026-11-20", '""'))
VALUE = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.text(max_size=3), max_size=2)


@settings(max_examples=cases(50, 200, 20_000), deadline=None)
@given(st.data())
def test_any_value_in_any_place_is_read_or_refused_with_the_file(data: st.DataObject) -> None:
    document = json.loads(json.dumps(WHOLE))
    place = document
    while True:
        key = data.draw(st.sampled_from([*place] if isinstance(place, dict) else range(len(place))))
        inside = place[key]
        if not (isinstance(inside, dict | list) and inside and data.draw(st.booleans())):
            place[key] = data.draw(VALUE)
            break
        place = inside
    try:
        assert asked(H100, json.dumps(document)).model
    except UsageError as error:
        assert "large.yaml" in error.message
