"""How a request to serve follows a cluster that changes: which hosts carry its ranks, and when it goes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from vllm_cluster.backends import vllm
from vllm_cluster.core import request

A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"
HERE = (A, A)
NAMES = {A: "gpu1", B: "gpu2"}


def asked(nodes: Mapping[str, int], tp: int, pp: int, hosts: list[str] | None = None, **more: Any) -> dict[str, Any]:
    """A request as `serve` writes it."""
    at: dict[str, Any] = {"name": "llama", "host": more.pop("host", "127.0.0.1"), "port": 8000}
    argv = vllm.serve_argv("org/llama", tp=tp, pp=pp, extra=(), **at)
    there = {address: count for address, count in nodes.items() if hosts is None or address in hosts}
    given: dict[str, Any] = {"ranks": vllm.place(there, tp, pp), **({"hosts": hosts} if hosts else {})}
    return request.request(argv, model="org/llama", nodes=nodes, **at, **given, **{"by_default": True, **more})


def followed(serve: dict[str, Any], gpus: Mapping[str, int]) -> tuple[Any, str]:
    """What is served after the cluster changed, and what is shown of it; None twice where nothing changes."""
    found = request.follow(request.written(serve, None), gpus, HERE, names=NAMES)
    return (json.loads(found.content)["serve"], found.text) if found else (None, "")


def test_a_host_that_joins_changes_nothing() -> None:
    serve = asked({A: 8, B: 8}, 8, 2)
    assert followed(serve, {A: 8, B: 8, C: 8}) == (None, "")
    assert asked({A: 8, B: 8, C: 8}, 8, 2)["generation"] == serve["generation"]


def test_ranks_go_to_the_host_that_came_in_place_of_another() -> None:
    serve = asked({A: 8, B: 8}, 8, 2)
    moved, text = followed(serve, {A: 8, C: 8})
    assert (moved["ranks"], moved["nodes"]) == ({A: 8, C: 8}, {A: 8, C: 8})
    # The same model in the same layout: what became of it so far still counts.
    assert moved["generation"] == serve["generation"]
    assert text == f"llama is served on {A}, {C}, before on {A}, {B}"


def test_the_named_hosts_are_kept_and_another_one_may_leave() -> None:
    serve = asked({A: 8, B: 8, C: 8}, 8, 1, [C])
    assert serve["ranks"] == {C: 8}
    assert followed(serve, {A: 8, C: 8}) == (None, "")
    assert serve["generation"] != asked({A: 8, B: 8, C: 8}, 8, 1)["generation"]


@pytest.mark.parametrize("by_default", [True, False])
def test_a_request_goes_with_a_host_that_it_named(*, by_default: bool) -> None:
    serve = asked({A: 8, B: 8, C: 8}, 8, 2, [B, C], by_default=by_default)
    gone, text = followed(serve, {A: 8, B: 8})
    assert gone is None
    again = "to serve it again: vcluster serve org/llama --name llama --hosts gpu2"
    assert text.endswith(f"{C} of --hosts gpu2,{C} has left; {again}")


def test_a_layout_that_a_person_chose_goes_with_its_gpus_and_keeps_its_hosts() -> None:
    serve = asked({A: 8, B: 8}, 8, 1, [B], by_default=False)
    gone, text = followed(serve, {A: 8, B: 4})
    assert gone is None
    assert text.endswith("there are 4; to serve it again: vcluster serve org/llama --name llama --hosts gpu2")


def test_a_default_layout_follows_within_the_named_hosts() -> None:
    serve = asked({A: 8, B: 8, C: 8}, 8, 2, [B, C])
    moved, text = followed(serve, {A: 8, B: 8, C: 4})
    assert (moved["ranks"], moved["hosts"]) == ({B: 8, C: 4}, [B, C])
    assert "TP=4 × PP=3, before TP=8 × PP=2" in text


def test_a_request_of_an_earlier_version_stays_as_it_is() -> None:
    serve = asked({A: 8, B: 8}, 8, 2)
    del serve["ranks"]
    assert followed(serve, {A: 8, B: 8, C: 8}) == (None, "")


@pytest.mark.parametrize("ranks", [7, [A], {A: "8"}, {A: -1}, {A: True}, "x"])
def test_unreadable_ranks_give_no_request(ranks: object) -> None:
    serve = {**asked({A: 8, B: 8}, 8, 2), "ranks": ranks}
    assert followed(serve, {A: 8}) == (None, "")


def test_the_difference_names_the_hosts() -> None:
    before, now = asked({A: 8, B: 8}, 8, 2), asked({A: 8, B: 8}, 8, 1, [B])
    assert [change.text for change in request.changes(before, now, {B: "gpu2"})] == [
        "--pp: 2 -> 1",
        "--hosts: (unset) -> gpu2",
    ]


def test_the_same_model_offline_is_the_same_request() -> None:
    """Pulled while it is served, it is not started again for that."""
    content: dict[str, Any] = {"name": "lab/llama", "argv": ["vllm"], "env": {"A": "1"}}
    offline = {**content, "env": {**content["env"], **request.OFFLINE}}
    assert request._generation(offline) == request._generation(content)
    assert request._generation({**content, "env": {"A": "2"}}) != request._generation(content)


def test_a_request_follows_the_addresses_of_its_hosts() -> None:
    """B and C exchange their addresses, as two hosts do that were plugged in the wrong way round."""
    serve = asked({A: 8, B: 8, C: 4}, 8, 1, [B])
    found = request.follow(request.written(serve, None), {A: 8, B: 4, C: 8}, HERE, {B: C, C: B}, names=NAMES)
    assert found
    moved = json.loads(found.content)["serve"]
    assert (moved["hosts"], moved["ranks"], found.text) == ([C], {C: 8}, f"llama is served on {C}, before on {B}")


def test_all_that_changes_of_a_request_is_shown() -> None:
    serve = asked({A: 8, B: 8}, 8, 2, host=A)
    found = request.follow(request.written(serve, None), {C: 8}, (A, C), {A: C}, names=NAMES)
    assert found
    moved = json.loads(found.content)["serve"]
    assert (moved["host"], moved["ranks"], "--host=10.0.0.3" in moved["argv"]) == (C, {C: 8}, True)
    assert found.text == f"llama is served at {C}; llama is served with TP=8 × PP=1, before TP=8 × PP=2"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((), "-- --max-model-len=9000"),
        (("--seed", "1"), "-- --seed 1 --max-model-len=9000"),
        (("--max-model-len", "4096", "--seed=1"), "-- --seed=1 --max-model-len=9000"),
        (("--max_model_len=4096", "--enforce-eager"), "-- --enforce-eager --max-model-len=9000"),
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
