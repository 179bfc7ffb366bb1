"""A deployment on hosts: what names it, and how people read it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.serve_requests import cluster, placed
from vllm_cluster.kernel.backends import vllm
from vllm_cluster.kernel.plan.placement import choose_layout, place_replica, serve_command, summary
from vllm_cluster.wire.order import Deployment

TWO = {"gpu1": 8, "gpu2": 8}


def test_the_same_model_offline_is_the_same() -> None:
    """Pulled while it is served, it is not started again for that."""
    asked = placed(TWO, 8, 2)
    loading = ("--safetensors-load-strategy=prefetch",)
    offline = place_replica(asked.deployment, cluster(TWO), (8, 2), 8000, loading=loading, offline=True)
    assert offline.generation == asked.generation
    assert offline.replica.leader.env.items() > vllm.OFFLINE.items()
    assert offline.replica.leader.argv[-1:] == loading


@pytest.mark.parametrize(
    "other",
    [{"model": "org/b"}, {"name": "b"}, {"flags": ("--seed=1",)}, {"expose": True}, {"hosts": ("gpu1", "gpu2")}],
)
def test_what_runs_otherwise_has_another_name(other: dict[str, Any]) -> None:
    assert placed(TWO, 8, 2, **other).generation != placed(TWO, 8, 2).generation
    assert placed(TWO, 4, 4).generation != placed(TWO, 8, 2).generation


def test_a_layout_that_is_asked_for_and_the_same_by_itself_are_one() -> None:
    assert placed(TWO, 8, 2, by_default=False).generation == placed(TWO, 8, 2).generation


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((), "-- --max-model-len=9000"),
        (("--seed", "1"), "-- --seed 1 --max-model-len=9000"),
        (("--max-model-len", "4096", "--seed=1"), "-- --max-model-len 4096 --seed=1 --max-model-len=9000"),
        (("--max_model_len=4096", "--enforce-eager"), "-- --max_model_len=4096 --enforce-eager --max-model-len=9000"),
    ],
)
def test_the_command_for_more_keeps_the_rest(before: tuple[str, ...], after: str) -> None:
    asked = Deployment("llama", "org/llama", before, 8, 1, ("gpu2",))
    found = serve_command(asked, {}, flag="--max-model-len=9000")
    assert found == f"vcluster serve org/llama --name llama --tp 8 --pp 1 --hosts gpu2 {after}"


# fault: kernel/plan/placement.py: if deployment.replicas > 1 or deployment.dp > 1: → if True:
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"hosts": ("gpu1",)}, "without Ray, as it is served already"),
        ({"dp": 2}, "without Ray (--dp)"),
        ({"replicas": 2}, "without Ray (--replicas)"),
    ],
)
def test_the_reason_for_a_layout_without_ray_names_only_what_was_typed(options: dict[str, Any], why: str) -> None:
    """One copy of a model that had several keeps what joins its parts."""
    there = cluster(TWO).keeping("mp")
    reasons = choose_layout(Deployment("llama", "org/llama", **options), there).reasons
    assert f"vLLM's own processes join the GPUs: {why}" in reasons


def test_the_line_of_the_history_has_the_layout_that_was_chosen() -> None:
    asked = placed(TWO, 8, 2, hosts=["gpu1", "gpu2"], expose=True, rollback=False)
    words = "org/llama --name llama --hosts gpu1,gpu2 --expose --no-rollback (TP=8 × PP=2)"
    assert summary(asked, {}) == words
