"""What is wrong in a container, from what was seen in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from vllm_cluster.kernel.images.contents import ImageContents, Reach, judge_contents, read_contents
from vllm_cluster.wire.reading import RefusedDocument

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
    found = list(judge_contents("v", "gpu1", replace(WELL, **inside), replace(SEES, **reach), gpus=2, cache="/models"))
    assert [(one.code, one.host, one.error) for one in found] == [(code, "gpu1", True)]
    assert words in found[0].message


def test_a_cache_that_others_fill_need_not_be_writable() -> None:
    found = judge_contents(
        "v", "gpu1", WELL, replace(SEES, unwritable="Read-only"), gpus=2, cache="/models", offline=True
    )
    assert [one.error for one in found] == [False]


def test_a_container_that_is_well() -> None:
    assert list(judge_contents("v", "gpu1", WELL, SEES, gpus=2, cache="/models")) == []
    # On hosts without GPUs the driver's library is not asked for.
    assert list(judge_contents("v", "gpu1", replace(WELL, cuda=""), Reach(), gpus=0, cache="/models")) == []


REPORT = {"python": "3.12.3", "machine": "x86_64", "glibc": "2.39", "have": {"vllm": "1"}}


# fault: wire/programs.py: Gpus = Annotated[int, between(0, 1024)] → Gpus = int
# fault: wire/programs.py: problem: Line = "" → problem: str = ""
@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        *(("python", one, "is not a version of Python") for one in ("3.12; rm", "3x12", "3.9999", f"3.{'9' * 5000}")),
        ("glibc", "2.9999", "is not a version of glibc"),
        ("machine", "x" * 129, "is not a name or a version"),
        ("machine", ["x86_64"], "must be text"),
        ("glibc", "2.x", "is not a version of glibc"),
        ("have", "all", "must be an object"),
        ("lacking", ["ok", "a b"], "is not a name or a version"),
        ("cuda", "$(rm)", "is not a version of numbers"),
        ("gpus", "many", "must be an integer"),
        ("gpus", 10**400, "must be from 0 to 1024"),
        ("unwritable", ["x"], "must be text"),
    ],
)
def test_a_hostile_report_is_refused_with_the_field_and_its_limit(field: str, value: object, why: str) -> None:
    with pytest.raises(RefusedDocument) as refused:
        read_contents([{**REPORT, field: value}])
    assert (refused.value.field.partition(".")[0], refused.value.why) == (field, why)
    inside, reach = read_contents([{**REPORT, "problem": "a\nfix: rm"}])
    assert (inside.have, reach.problem) == ((("vllm", "1"),), "a fix: rm")


def test_a_distribution_that_pip_could_not_be_given_is_not_compared() -> None:
    inside, _ = read_contents([{**REPORT, "have": {"vllm": "1", "x;rm": "2", "none": None, "y": "1 --pre"}}])
    assert inside.have == (("vllm", "1"),)
