"""A deployment on hosts: what names it, and how people read it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from tests.support.serve_requests import cluster, placed
from vllm_cluster.kernel.backends import vllm
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.plan.placement import (
    choose_layout,
    idle_gpus,
    most_replicas,
    place_replica,
    place_replicas,
    serve_command,
    summary,
)
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


# fault: kernel/plan/placement.py: *typed_words(redact_words(flags))] → *typed_words(flags)]
# fault: kernel/text.py: else REDACTED if before and redact(pair) → else REDACTED if False and redact(pair)
@pytest.mark.promise("P46")
@pytest.mark.parametrize(
    ("flag", "end"),
    [
        ("""--served-model-name=secret:"abcdef'x";touch RAN;#""", ";touch RAN;#"),
        ("--chat-template=a\nvcluster down --yes\nb", "a\\nvcluster down --yes\\nb"),
    ],
)
def test_a_flag_stays_one_word_of_one_line_without_its_secret(flag: str, end: str) -> None:
    """The quote behind a secret went with it, and what followed was a command in each of four shells."""
    asked = Deployment("m", "m", (flag, "--api-key", "hunter2hunter2", "--seed", "1"))
    found = serve_command(asked, {}, layout=False)
    begin, word, *more = found.partition(" -- ")[0], *shlex.split(found)[4:]
    assert (begin, more) == ("vcluster serve m", ["--api-key", "[redacted]", "--seed", "1"])
    assert word.endswith(end) and "abcdef" not in word and "\n" not in found


# fault: kernel/plan/placement.py: words = ["vcluster", *verb, deployment.model] → words = ["vcluster", *verb, Option(deployment.model)]
# fault: kernel/plan/placement.py: [Option("--name"), deployment.name] → [Option("--name"), Option(deployment.name)]
# fault: kernel/text.py: else word) → else own[:])
def test_no_value_of_a_request_is_an_option_of_the_line_that_is_shown() -> None:
    """A model that a command line of others named --from=FILE had the line, once pasted, serve what FILE asks for."""
    asked = Deployment("-iy.yaml", "--from=x.sh", ("--seed", "1"), 8, 1, ("gpu2",))
    line = "vcluster serve './--from=x.sh' --name ./-iy.yaml --tp 8 --pp 1 --hosts gpu2 -- --seed 1"
    assert serve_command(asked, {}) == line


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


# fault: kernel/plan/placement.py: serve_command(placed.deployment, names).removeprefix → serve_command(placed.deployment, names, layout=False).removeprefix
def test_the_line_of_the_history_serves_the_same_again_and_has_the_layout_that_was_chosen() -> None:
    """It had no --replicas, and what was pasted from it served one."""
    asked = placed(TWO, 8, 2, hosts=["gpu1", "gpu2"], expose=True, rollback=False)
    words = "org/llama --name llama --hosts gpu1,gpu2 --expose --no-rollback (TP=8 × PP=2)"
    assert summary(asked, {}) == words
    several = Deployment("llama", "org/llama", (), 2, 1, (), dp=2, replicas=3, expert_parallel=True)
    found = summary(place_replica(several, cluster(TWO), (2, 1), 8000), {})
    options = found.partition(" (")[0]
    assert options == "org/llama --name llama --tp 2 --pp 1 --dp 2 --replicas 3 --ep"


def idle(nodes: dict[str, int], tp: int, pp: int, taken: dict[str, set[int]] | None = None, **more: Any) -> str:
    """Which GPUs are idle once this is placed, beside what others have."""
    there = replace(cluster(nodes), taken={name: frozenset(numbers) for name, numbers in (taken or {}).items()})
    deployment = Deployment("llama", "org/llama", tp=tp, pp=pp, **more)
    layout = choose_layout(deployment, there)
    return idle_gpus(place_replicas(deployment, there, (layout.tp, layout.pp), 8000), there)


# fault: kernel/plan/placement.py: for name, number in left.items() if number) → for name, number in left.items())
@pytest.mark.parametrize(
    ("nodes", "tp", "pp", "found"),
    [
        ([8, 8], 1, 1, "15 of the 16 GPUs idle: 7 of gpu1, 8 of gpu2"),
        ([8, 8], 8, 1, "8 of the 16 GPUs idle: 8 of gpu2"),
        ([2, 4], 2, 2, "2 of the 6 GPUs idle: 2 of gpu2"),
        ([8, 8, 8], 8, 2, "8 of the 24 GPUs idle: 8 of gpu3"),
        ([4, 8], 8, 1, "4 of the 12 GPUs idle: 4 of gpu1"),
        ([4, 4, 4], 8, 1, "4 of the 12 GPUs idle: 4 of gpu3"),
        ([4], 2, 1, "2 of the 4 GPUs idle: 2 of gpu1"),
    ],
)
def test_the_reasons_list_the_gpus_that_are_left_idle(nodes: list[int], tp: int, pp: int, found: str) -> None:
    by_name = {f"gpu{number}": gpus for number, gpus in enumerate(nodes, 1)}
    assert idle(by_name, tp, pp) == f"this layout leaves {found}"


# fault: kernel/plan/placement.py: left = {name: number - len(cluster.taken.get(name, ())) → left = {name: number
def test_what_another_model_has_is_not_idle_nor_what_this_one_gets() -> None:
    two = {"gpu1": 2, "gpu2": 2}
    # It gets what is left of the second host, and not the first GPU that is free.
    assert idle(two, 1, 1, {"gpu2": {0}}) == "this layout leaves 2 of the 4 GPUs idle: 2 of gpu1"
    assert idle(two, 1, 1, {"gpu1": {0, 1}}) == "this layout leaves 1 of the 4 GPUs idle: 1 of gpu2"
    assert idle(two, 1, 1, {"gpu1": {0, 1}}, replicas=2) == ""
    assert idle(two, 2, 1, replicas=2) == ""


# fault: kernel/plan/placement.py: deployment.dp, cluster.taken) → deployment.dp)
def test_as_many_as_fit_are_those_on_gpus_that_no_other_model_has() -> None:
    """More would have `serve` ask to stop the others."""
    there = replace(cluster({"gpu1": 2, "gpu2": 2}), taken={"gpu1": frozenset({0})})
    assert most_replicas(Deployment("llama", "org/llama", tp=1), there) == 3


# fault: kernel/plan/placement.py: where = f"the rest of {where}" if cluster.taken else where → where = where
def test_a_layout_that_does_not_fit_beside_others_is_refused_with_what_they_leave() -> None:
    there = replace(cluster({"gpu1": 2, "gpu2": 2}), taken={"gpu1": frozenset({0, 1})})
    with pytest.raises(UsageError, match="needs 4 GPUs; the rest of the cluster has 2"):
        choose_layout(Deployment("llama", "org/llama", tp=2, pp=2), there)
