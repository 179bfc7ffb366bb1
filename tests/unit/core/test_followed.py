"""How a request to serve follows a cluster that changes: which hosts carry its ranks, and when it goes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.serve_requests import asked
from vllm_cluster.core.request import ChangedCluster, carried, follow, written

A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"
HERE = (A, A)
NAMES = {A: "gpu1", B: "gpu2"}


def followed(serve: dict[str, Any], gpus: Mapping[str, int]) -> tuple[Any, str]:
    """What is served after the cluster changed, and what is shown of it; None twice where nothing changes."""
    found = follow(written(serve, None), ChangedCluster(gpus, HERE, NAMES))
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


# fault: core/request.py: moved = _readdressed(serve, change.readdressed) → moved = _readdressed(serve, {})
def test_a_request_follows_the_addresses_of_its_hosts() -> None:
    """B and C exchange their addresses, as two hosts do that were plugged in the wrong way round."""
    serve = asked({A: 8, B: 8, C: 4}, 8, 1, [B])
    found = follow(written(serve, None), ChangedCluster({A: 8, B: 4, C: 8}, HERE, NAMES, {B: C, C: B}))
    assert found
    moved = json.loads(found.content)["serve"]
    assert (moved["hosts"], moved["ranks"], found.text) == ([C], {C: 8}, f"llama is served on {C}, before on {B}")


def test_all_that_changes_of_a_request_is_shown() -> None:
    serve = asked({A: 8, B: 8}, 8, 2, host=A)
    found = follow(written(serve, None), ChangedCluster({C: 8}, (A, C), NAMES, {A: C}))
    assert found
    moved = json.loads(found.content)["serve"]
    assert (moved["host"], moved["ranks"], "--host=10.0.0.3" in moved["argv"]) == (C, {C: 8}, True)
    assert found.text == f"llama is served at {C}; llama is served with TP=8 × PP=1, before TP=8 × PP=2"


def taken(asked_for: Mapping[str, Any], **more: Any) -> bytes:
    """What a head knows of request 1."""
    known = {"number": 1, "asked": asked_for, "back_to": None, "failed": None, "ready": False, "ended": False}
    return json.dumps({**known, **more}).encode()


def left(serve: Mapping[str, Any], known: bytes) -> tuple[Any, Any, str]:
    """What is wanted, and what is served where that cannot be, once B has left; and what is shown of it."""
    found = follow(written(serve, None), ChangedCluster({A: 8}, HERE, NAMES), known)
    assert found
    file = json.loads(found.content)
    return file["serve"], file["back_to"], found.text


GOOD, BAD = asked({A: 8, B: 8}, 8, 2), asked({A: 8, B: 8}, 8, 2, model="org/bad", name="bad")


def test_what_is_served_in_place_of_a_request_that_failed_follows() -> None:
    serve, back_to, text = left(BAD, taken(BAD, back_to=GOOD, failed={"name": "bad"}, ended=True))
    assert (serve["name"], serve["ranks"], back_to) == ("llama", {A: 8}, None)
    assert text == (
        "llama is served with TP=8 × PP=1, before TP=8 × PP=2; bad, which could not be served, is not wanted any more"
    )


def test_a_failed_request_stays_where_what_is_served_in_its_place_does() -> None:
    known = taken(BAD, back_to=GOOD, failed={"name": "bad"}, ended=True)
    assert follow(written(BAD, None), ChangedCluster({A: 8, B: 8, C: 8}, HERE, NAMES), known) is None


@pytest.mark.parametrize("known", ["pending", "not taken yet"])
def test_what_a_load_goes_back_to_follows_too(known: str) -> None:
    state = {"pending": taken(BAD, back_to=GOOD), "not taken yet": taken(GOOD, number=0, ready=True, ended=True)}
    serve, back_to, _ = left(BAD, state[known])
    assert [(one["name"], one["ranks"]) for one in (serve, back_to)] == [("bad", {A: 8}), ("llama", {A: 8})]


def test_it_follows_where_the_load_itself_needs_no_host_that_left() -> None:
    small = asked({A: 8, B: 8}, 8, 1, model="org/bad", name="bad")
    serve, back_to, text = left(small, taken(small, back_to=GOOD))
    assert (serve, back_to["ranks"]) == (small, {A: 8})
    assert text == "where bad cannot be served: llama is served with TP=8 × PP=1, before TP=8 × PP=2"


def test_a_load_that_does_not_fit_any_more_brings_back_what_does() -> None:
    wide = asked({A: 8, B: 8}, 8, 2, model="org/bad", name="bad", by_default=False)
    serve, back_to, text = left(wide, taken(wide, back_to=GOOD))
    assert (serve["name"], serve["ranks"], back_to) == ("llama", {A: 8}, None)
    assert text.startswith("bad is not served any more: TP=8 × PP=2 needs 16 GPUs, and there are 8; ")
    assert text.endswith("; llama is served again")


@pytest.mark.parametrize("known", [{}, {"back_to": GOOD, "ready": True, "ended": True}])
def test_there_is_no_way_back_to_the_layout_of_before(known: Mapping[str, Any]) -> None:
    serve, back_to, _ = left(BAD, taken(BAD, **known))
    assert (serve["name"], back_to) == ("bad", None)


def test_without_rollback_nothing_is_gone_back_to() -> None:
    alone = {**BAD, "rollback": False}
    assert left(alone, taken(alone, back_to=GOOD))[1] is None


def test_a_request_without_variables_is_not_one() -> None:
    del (cut := dict(GOOD))["env"]
    assert follow(written(cut, None), ChangedCluster({A: 8}, HERE, NAMES)) is None


@pytest.mark.parametrize("unreadable", [b"", b"[]", b"{", b'{"number": 1, "failed": {}, "back_to": 7}'])
def test_a_file_of_the_head_that_cannot_be_read_counts_as_none(unreadable: bytes) -> None:
    assert left(BAD, unreadable)[0]["name"] == "bad"


def test_a_head_that_moves_takes_along_what_it_went_back_to() -> None:
    failed = taken(BAD, back_to=GOOD, failed={"name": "bad"}, ready=True, ended=True)
    assert json.loads(carried(failed)) == {**json.loads(failed), "ready": False}
    assert json.loads(carried(taken(BAD, back_to=GOOD)))["back_to"] == GOOD
    # Nothing is ready on the new head yet, and a first failure there is written down.
    assert json.loads(carried(taken(GOOD, ready=True, ended=True))) == json.loads(carried(None)) == {}
