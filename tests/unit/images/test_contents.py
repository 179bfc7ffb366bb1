"""What is wrong in a container, from what was seen in it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from vllm_cluster.kernel.images.contents import ImageContents, Reach, judged, parse

WELL = ImageContents("3.12.3", "x86_64", "2.39", (("ray", "2.56.1"), ("vllm", "0.33.0")), cuda="13.0")
SEES = Reach(2, "", "13.1")


# fault: kernel/images/contents.py: if gpus and reach.gpus != gpus: → if gpus and reach.gpus is None:
# fault: kernel/images/contents.py: if reach.unwritable: → if reach.unwritable is None:
@pytest.mark.promise("P40")
@pytest.mark.parametrize(
    ("inside", "reach", "code", "words"),
    [
        ({"python": "3.9.18"}, {}, "image-unfit", "has Python 3.9.18; the node program needs 3.10"),
        ({"have": (("ray", "2.56.1"),)}, {}, "image-unfit", "has no vLLM in it"),
        ({"unknown": ("middleware",)}, {}, "image-unfit", "does not know --middleware"),
        ({}, {"gpus": None, "problem": "libcuda.so.1: not there"}, "container-gpus-missing", "no GPU: libcuda.so.1"),
        ({}, {"gpus": 0, "problem": "cuInit: 802, system not yet"}, "container-gpus-missing", "no GPU: cuInit: 802"),
        ({}, {"gpus": 1}, "container-gpus-missing", "sees 1 of 2 GPUs"),
        ({}, {"cuda": "12.8"}, "container-cuda-old", "knows CUDA 12.8, torch was built for 13.0"),
        ({}, {"unwritable": "Permission denied (as user 0:0)"}, "cache-not-writable", "to /models: Permission denied"),
    ],
)  # fmt: skip
def test_each_problem_is_an_error_with_its_text(
    inside: dict[str, Any], reach: dict[str, Any], code: str, words: str
) -> None:
    found = list(judged("v", "gpu1", replace(WELL, **inside), replace(SEES, **reach), gpus=2, cache="/models"))
    assert [(one.code, one.host, one.error) for one in found] == [(code, "gpu1", True)]
    assert words in found[0].message


def test_a_cache_that_others_fill_need_not_be_writable() -> None:
    found = judged("v", "gpu1", WELL, replace(SEES, unwritable="Read-only"), gpus=2, cache="/models", offline=True)
    assert [one.error for one in found] == [False]


def test_a_container_that_is_well() -> None:
    assert list(judged("v", "gpu1", WELL, SEES, gpus=2, cache="/models")) == []
    # On hosts without GPUs the driver's library is not asked for.
    assert list(judged("v", "gpu1", replace(WELL, cuda=""), Reach(), gpus=0, cache="/models")) == []


def test_hostile_answers_are_words_and_numbers_only() -> None:
    hostile = (
        '{"python": "3.12.3", "machine": "x86_64", "glibc": "2.39", "have": {"vllm": "1", "x;rm": "2"}, "lacking": '
        '["ok", "a b", 7], "unknown": "all", "cuda": "$(rm)", "gpus": "many", "problem": null, "unwritable": ["x"]}'
    )
    inside, reach = parse([json.loads(hostile)])
    assert (inside.have, inside.lacking, inside.unknown, inside.cuda) == ((("vllm", "1"),), ("ok",), (), "")
    assert (reach.gpus, reach.problem) == (None, "")
