"""The request to serve: what names it, and how people read it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.serve_requests import asked
from vllm_cluster.core import request

A, B = "10.0.0.1", "10.0.0.2"
NAMES = {A: "gpu1", B: "gpu2"}


def test_the_same_model_offline_is_the_same_request() -> None:
    """Pulled while it is served, it is not started again for that."""
    content: dict[str, Any] = {"name": "lab/llama", "argv": ["vllm"], "env": {"A": "1"}}
    offline = {**content, "env": {**content["env"], **request.OFFLINE}}
    assert request.generation(offline) == request.generation(content)
    assert request.generation({**content, "env": {"A": "2"}}) != request.generation(content)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((), "-- --max-model-len=9000"),
        (("--seed", "1"), "-- --seed 1 --max-model-len=9000"),
        (("--max-model-len", "4096", "--seed=1"), "-- --max-model-len 4096 --seed=1 --max-model-len=9000"),
        (("--max_model_len=4096", "--enforce-eager"), "-- --max_model_len=4096 --enforce-eager --max-model-len=9000"),
    ],
)
def test_the_command_for_more_keeps_the_rest_of_the_request(before: tuple[str, ...], after: str) -> None:
    serve = asked({A: 8, B: 8}, 8, 1, [B], by_default=False)
    serve["argv"][3:3] = before
    found = request.command_with(serve, NAMES, "x", flag="--max-model-len=9000")
    assert found == f"vcluster serve org/llama --name llama --tp 8 --pp 1 --hosts gpu2 {after}"


@pytest.mark.parametrize("unreadable", [None, {}, {"argv": 3}, "x"])
def test_the_command_for_a_request_that_cannot_be_read_is_that_of_the_model(unreadable: object) -> None:
    found = request.command_with(unreadable, {}, "org/llama", expose=True, flag="--seed=1")
    assert found == "vcluster serve org/llama --expose -- --seed=1"
