"""How an order follows a cluster that changes: which hosts carry its ranks, and when it goes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.support.serve_requests import cluster, placed
from vllm_cluster.kernel.plan.followed import carried, follow
from vllm_cluster.kernel.plan.placement import Cluster
from vllm_cluster.wire.order import Order, Placement, Taken, read_order, read_taken
from vllm_cluster.wire.status import FailedRequest

TWO = {"gpu1": 8, "gpu2": 8}
THREE = {**TWO, "gpu3": 8}
ONE = {"gpu1": 8}


def order(serve: Placement, number: int = 1) -> bytes:
    """The file that asks for this."""
    return Order(number, "", (serve,)).document


def followed(serve: Placement, now: Cluster) -> tuple[Any, str]:
    """What is served after the cluster changed, and what is shown of it; None where nothing changes."""
    found = follow(order(serve), now)
    return (read_order(found.content).wanted, found.text) if found else (None, "")


def ranks(serve: Any) -> dict[str, int]:
    """The GPUs that it takes, by host."""
    return {part.host: part.gpus for part in serve.replica.parts if part.gpus}


def test_a_host_that_joins_changes_nothing() -> None:
    serve = placed(TWO, 8, 2)
    assert followed(serve, cluster(THREE)) == (None, "")
    assert placed(THREE, 8, 2).generation == serve.generation


def test_ranks_go_to_the_host_that_came_in_place_of_another() -> None:
    serve = placed(TWO, 8, 2)
    moved, text = followed(serve, cluster({"gpu1": 8, "gpu3": 8}))
    assert ranks(moved) == {"gpu1": 8, "gpu3": 8}
    # The same model in the same layout: what became of it so far still counts.
    assert moved.generation == serve.generation
    assert text == "llama is served on gpu1, gpu3, before on gpu1, gpu2"


def test_the_named_hosts_are_kept_and_another_one_may_leave() -> None:
    serve = placed(THREE, 8, 1, ["gpu3"])
    # The head leads, and has no rank.
    assert (ranks(serve), serve.replica.leader.host) == ({"gpu3": 8}, "gpu1")
    assert followed(serve, cluster({"gpu1": 8, "gpu3": 8})) == (None, "")
    assert serve.generation != placed(THREE, 8, 1).generation


@pytest.mark.parametrize("by_default", [True, False])
def test_a_deployment_goes_with_a_host_that_it_named(*, by_default: bool) -> None:
    serve = placed(THREE, 8, 2, ["gpu2", "gpu3"], by_default=by_default)
    gone, text = followed(serve, cluster(TWO))
    assert gone is None
    again = "to serve it again: vcluster serve org/llama --name llama --hosts gpu2"
    assert text.endswith(f"gpu3 of --hosts gpu2,gpu3 has left; {again}")


def test_a_layout_that_a_person_chose_goes_with_its_gpus_and_keeps_its_hosts() -> None:
    serve = placed(TWO, 8, 1, ["gpu2"], by_default=False)
    gone, text = followed(serve, cluster({"gpu1": 8, "gpu2": 4}))
    assert gone is None
    assert text.endswith("there are 4; to serve it again: vcluster serve org/llama --name llama --hosts gpu2")


def test_a_default_layout_follows_within_the_named_hosts() -> None:
    serve = placed(THREE, 8, 2, ["gpu2", "gpu3"])
    moved, text = followed(serve, cluster({"gpu1": 8, "gpu2": 8, "gpu3": 4}))
    assert (ranks(moved), moved.deployment.hosts) == ({"gpu2": 8, "gpu3": 4}, ("gpu2", "gpu3"))
    assert "TP=4 × PP=3, before TP=8 × PP=2" in text


# fault: kernel/plan/followed.py: deployment, before = cluster.renamed(placed.deployment), → deployment, before = placed[1],
def test_a_deployment_follows_the_names_of_its_hosts() -> None:
    """gpu2 and gpu3 exchange their names, as two hosts do that were plugged in the wrong way round."""
    serve = placed({"gpu1": 8, "gpu2": 8, "gpu3": 4}, 8, 1, ["gpu2"])
    exchanged = {"gpu2": "gpu3", "gpu3": "gpu2"}
    addresses = {"gpu2": "10.0.0.3", "gpu3": "10.0.0.2"}
    moved, text = followed(serve, cluster({"gpu1": 8, "gpu2": 4, "gpu3": 8}, exchanged, **addresses))
    assert (moved.deployment.hosts, ranks(moved)) == (("gpu3",), {"gpu3": 8})
    assert (text, moved.generation) == ("llama is served on gpu3, before on gpu2", serve.generation)


def test_a_deployment_follows_the_addresses_of_its_hosts() -> None:
    serve = placed(TWO, 8, 1, ["gpu2"])
    moved, text = followed(serve, cluster(TWO, gpu2="10.0.0.9"))
    assert moved.replica.ranks == {"10.0.0.9": 8}
    assert text == "llama is served on 10.0.0.9, before on 10.0.0.2"
    assert moved.generation == serve.generation


def test_all_that_changes_of_a_deployment_is_shown() -> None:
    serve = placed(TWO, 8, 2, expose=True)
    moved, text = followed(serve, cluster({"gpu3": 8}, {"gpu1": "gpu3"}))
    assert (moved.replica.host, ranks(moved)) == ("10.0.0.3", {"gpu3": 8})
    assert "--host=10.0.0.3" in moved.replica.leader.argv
    assert text == "llama is served at 10.0.0.3; llama is served with TP=8 × PP=1, before TP=8 × PP=2"


def test_the_head_that_leads_is_the_one_of_now() -> None:
    serve = placed(THREE, 8, 1, ["gpu3"])
    moved, text = followed(serve, cluster({"gpu2": 8, "gpu3": 8}))
    assert (moved.replica.leader.host, text) == ("gpu2", "llama is served by gpu2")


FAILED = FailedRequest(1.0, "", (), "b", "org/bad", "bad")


def taken(asked_for: Placement, **more: Any) -> bytes:
    """What a head knows of order 1."""
    return json.dumps(Taken(**{"number": 1, "asked": asked_for, **more}).document).encode()


def left(serve: Placement, known: bytes) -> tuple[Any, Any, str]:
    """What is wanted, and what is served where that cannot be, once gpu2 has left; and what is shown of it."""
    found = follow(order(serve), cluster(ONE), known)
    assert found
    file = read_order(found.content)
    return file.wanted, next(iter(file.back_to or ()), None), found.text


GOOD, BAD = placed(TWO, 8, 2), placed(TWO, 8, 2, model="org/bad", name="bad")


def test_what_is_served_in_place_of_an_order_that_failed_follows() -> None:
    serve, back_to, text = left(BAD, taken(BAD, back_to=GOOD, failed=FAILED, ended=True))
    assert (serve.deployment.name, ranks(serve), back_to) == ("llama", {"gpu1": 8}, None)
    assert text == (
        "llama is served with TP=8 × PP=1, before TP=8 × PP=2; bad, which could not be served, is not wanted any more"
    )


def test_a_failed_order_stays_where_what_is_served_in_its_place_does() -> None:
    known = taken(BAD, back_to=GOOD, failed=FAILED, ended=True)
    assert follow(order(BAD), cluster(THREE), known) is None


@pytest.mark.parametrize("known", ["pending", "not taken yet"])
def test_what_a_load_goes_back_to_follows_too(known: str) -> None:
    state = {"pending": taken(BAD, back_to=GOOD), "not taken yet": taken(GOOD, number=0, ready=True, ended=True)}
    serve, back_to, _ = left(BAD, state[known])
    assert [(one.deployment.name, ranks(one)) for one in (serve, back_to)] == [
        ("bad", {"gpu1": 8}),
        ("llama", {"gpu1": 8}),
    ]


def test_it_follows_where_the_load_itself_needs_no_host_that_left() -> None:
    small = placed(TWO, 8, 1, model="org/bad", name="bad")
    serve, back_to, text = left(small, taken(small, back_to=GOOD))
    assert (serve, ranks(back_to)) == (small, {"gpu1": 8})
    assert text == "where bad cannot be served: llama is served with TP=8 × PP=1, before TP=8 × PP=2"


def test_a_load_that_does_not_fit_any_more_brings_back_what_does() -> None:
    wide = placed(TWO, 8, 2, model="org/bad", name="bad", by_default=False)
    serve, back_to, text = left(wide, taken(wide, back_to=GOOD))
    assert (serve.deployment.name, ranks(serve), back_to) == ("llama", {"gpu1": 8}, None)
    assert text.startswith("bad is not served any more: TP=8 × PP=2 needs 16 GPUs, and there are 8; ")
    assert text.endswith("; llama is served again")


@pytest.mark.parametrize("known", [{}, {"back_to": GOOD, "ready": True, "ended": True}])
def test_there_is_no_way_back_to_the_layout_of_before(known: Mapping[str, Any]) -> None:
    serve, back_to, _ = left(BAD, taken(BAD, **known))
    assert (serve.deployment.name, back_to) == ("bad", None)


def test_without_rollback_nothing_is_gone_back_to() -> None:
    alone = replace(BAD, deployment=replace(BAD.deployment, rollback=False))
    assert left(alone, taken(alone, back_to=GOOD))[1] is None


@pytest.mark.parametrize("broken", [b"", b"\0" * 512, b"[]", b"{", json.dumps({"v": 9}).encode()])
def test_an_order_that_a_power_cut_broke_is_what_the_head_took(broken: bytes) -> None:
    found = follow(broken, cluster(ONE), taken(GOOD, ready=True, ended=True))
    assert found and (wanted := read_order(found.content).wanted)
    assert (wanted.deployment.name, ranks(wanted)) == ("llama", {"gpu1": 8})
    assert follow(broken, cluster(ONE)) is None


@pytest.mark.parametrize("unreadable", [b"", b"[]", b"{", b'{"number": 1, "failed": {}, "back_to": 7}'])
def test_a_file_of_the_head_that_cannot_be_read_counts_as_none(unreadable: bytes) -> None:
    assert left(BAD, unreadable)[0].deployment.name == "bad"


def test_a_head_that_moves_takes_along_what_it_went_back_to() -> None:
    failed = taken(BAD, back_to=GOOD, failed=FAILED, ready=True, ended=True)
    assert carried(failed) == replace(read_taken(failed), ready=False)
    assert carried(taken(BAD, back_to=GOOD)).back_to == GOOD
    # Nothing is ready on the new head yet, and a first failure there is written down.
    assert carried(taken(GOOD, ready=True, ended=True)) == carried(None) == Taken()


# fault: kernel/plan/followed.py: except ValueError as error: → except ZeroDivisionError as error:
def test_replicas_that_meet_once_they_are_placed_again_are_not_served() -> None:
    """No vcluster writes such an order; a head may."""
    one = placed(ONE, 8, 1, replicas=2)
    (part,) = one.replica.parts
    half = partial(replace, part, gpus=4)
    rows = [
        replace(one, index=index, replica=replace(one.replica, tp=4, backend="ray", parts=(half(devices=devices),)))
        for index, devices in enumerate(((0, 1, 2, 3), (4, 5, 6, 7)))
    ]
    found = follow(Order(1, "", tuple(rows)).document, replace(cluster(TWO), addresses={"gpu1": "10.9.9.9"}))
    assert found
    assert read_order(found.content).deployments == ()
    assert found.text == "nothing is served any more: the order gives a GPU to two replicas"
