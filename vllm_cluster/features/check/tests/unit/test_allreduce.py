"""What ranks report becomes the name of a host or a link, or the admission that it is neither."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm_cluster.features.check.allreduce import (
    AllReduceTime,
    Pair,
    RankMessage,
    Trial,
    locate_fault,
    ring,
    slow,
    slow_link_finding,
    transport_findings,
)
from vllm_cluster.kernel.backends.nccl import NcclTransport
from vllm_cluster.wire.reading import RefusedDocument, convert

# On a machine that other work keeps busy no single case has a time.
calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
SIZES = (1 << 10, 1 << 20)


def message(row: dict[str, Any]) -> RankMessage:
    """What a host sends."""
    return convert(RankMessage, row, "gpu1")


def trial(*hosts: str, ok: bool = True, bus: float = 1.0) -> Trial:
    """A trial with a rank on each host, which came to its end or hung after the first size."""
    made = Trial(dict(enumerate(hosts)), SIZES)
    share = 2 * (len(hosts) - 1) / len(hosts)
    for rank in made.ranks:
        for step in ("started", "store", "joined"):
            made.update(rank, message({"step": step}))
        for size in SIZES if ok else SIZES[:1]:
            took = share * size / bus / 1e9
            made.update(rank, message({"step": "size", "bytes": size, "seconds": took, "right": True}))
        if ok:
            made.update(rank, message({"step": "done"}))
            made.update(rank, message({"step": "ended", "code": 0}))
    made.stopped = made.given_up = not ok
    return made


def test_a_trial_that_came_to_its_end_has_figures() -> None:
    done = trial("gpu1", "gpu2", bus=12.0)
    assert (done.ok, done.over) == (True, True)
    assert [row.bytes for row in done.rows()] == list(SIZES)
    assert done.rows()[-1].bus_gb_per_s == pytest.approx(12.0)


def test_a_wrong_sum_is_a_failure() -> None:
    done = trial("gpu1", "gpu2")
    done.update(1, message({"step": "size", "bytes": 1 << 20, "seconds": 0.1, "right": False}))
    assert not done.ok
    assert done.why() == "the sum of 1 MiB is wrong on rank 1 (gpu2)"


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([], "rank 1 (gpu2) never started"),
        (["started"], "rank 1 (gpu2) never reached the rendezvous on gpu1"),
        (["started", "store"], "rank 1 (gpu2) never joined the group"),
        (["started", "store", "joined"], "rank 1 (gpu2) never got through 1 KiB"),
    ],
)
def test_who_had_not_arrived_is_reported_with_the_step(steps: list[str], why: str) -> None:
    hung = Trial({0: "gpu1", 1: "gpu2"}, SIZES)
    for step in ("started", "store", "joined"):
        hung.update(0, message({"step": step}))
    hung.update(0, message({"step": "size", "bytes": 1 << 10, "seconds": 1.0, "right": True}))
    for step in steps:
        hung.update(1, message({"step": step}))
    hung.stopped = hung.given_up = True
    hung.update(1, message({"step": "ended", "code": -9}))
    assert hung.why() == why
    assert not hung.ok


def test_all_stuck_at_one_size_are_one_finding() -> None:
    assert trial("gpu1", "gpu2", ok=False).why() == "no rank got through 1 MiB"


def test_a_rank_that_died_silently_is_reported_before_those_that_lost_it() -> None:
    failed = trial("gpu1", "gpu2", ok=False)
    failed.stopped = failed.given_up = False
    failed.update(0, message({"step": "failed", "error": "Connection closed by peer"}))
    failed.update(0, message({"step": "ended", "code": 1}))
    failed.update(1, message({"step": "ended", "code": -11}))
    assert failed.why() == "rank 1 (gpu2) failed: it died (exit code -11)"


@pytest.mark.parametrize("row", [{"step": "size", "bytes": 77, "seconds": 1.0}, {"step": "size", "bytes": 1 << 10}, {}])
def test_messages_that_no_rank_sends_are_ignored(row: dict[str, object]) -> None:
    made = Trial({0: "gpu1"}, SIZES)
    assert made.update(0, message(row)) is False
    assert made.update(9, message({"step": "started"})) is False
    assert (made.steps, made.seconds, made.log) == ({}, {}, {})


# fault: features/check/allreduce.py: seconds: Annotated[float, between(0.0, 1e9)] | None → seconds: object
@pytest.mark.parametrize(
    "row",
    [{"step": "size", "bytes": 1 << 10, "seconds": value} for value in ("fast", -1.0, 10**400, float("nan"))]
    + [{"step": ["joined"]}, {"step": None}, {"log": 7}, {"rank": []}, {"trial": [1]}, {"code": 10**400}, {"port": 0}],
    ids=lambda row: repr(row)[:60],
)
def test_a_message_of_another_shape_is_refused(row: dict[str, object]) -> None:
    with pytest.raises(RefusedDocument, match=r"^gpu1: "):
        message(row)


# fault: features/check/allreduce.py: pairs[1::2], last if → last if
@calm
@given(st.integers(2, 40))
def test_each_host_meets_its_neighbours_and_no_host_twice_a_round(count: int) -> None:
    hosts = [f"gpu{n}" for n in range(count)]
    played = ring(hosts)
    for pairs in played:
        names = [host for pair in pairs for host in pair]
        assert len(names) == len(set(names))
    every = [frozenset(pair) for pairs in played for pair in pairs]
    expected = {frozenset((host, hosts[at - 1])) for at, host in enumerate(hosts)}
    assert (len(every), set(every)) == (len(expected), expected)
    # An even number of hosts is tried in two rounds, for any number.
    assert len(played) == (1 if count == 2 else 2 + count % 2)


def tried(hosts: list[str], bad_host: str = "", bad_link: frozenset[str] = frozenset()) -> dict[Pair, Trial]:
    """The pairs, with one host or one link that does not work."""
    pairs = [pair for played in ring(hosts) for pair in played]
    return {pair: trial(*pair, ok=bad_host not in pair and set(pair) != bad_link) for pair in pairs}


@calm
@given(st.integers(3, 16), st.data())
def test_a_host_that_works_with_no_other_is_reported(count: int, data: st.DataObject) -> None:
    hosts = [f"gpu{n}" for n in range(count)]
    bad = data.draw(st.sampled_from(hosts))
    pairs = tried(hosts, bad_host=bad)
    found = locate_fault(trial(*hosts, ok=False), {host: trial(host) for host in hosts}, pairs)
    assert [(each.code, each.host) for each in found] == [("allreduce-host", bad)]


# fault: features/check/allreduce.py: len(tried) > 1 and all → any
@calm
@given(st.integers(3, 16), st.data())
def test_a_link_between_two_hosts_that_else_work_is_reported(count: int, data: st.DataObject) -> None:
    hosts = [f"gpu{n}" for n in range(count)]
    at = data.draw(st.integers(0, count - 1))
    bad = frozenset((hosts[at], hosts[at - 1]))
    found = locate_fault(trial(*hosts, ok=False), {}, tried(hosts, bad_link=bad))
    assert [each.code for each in found] == ["allreduce-link"]
    assert all(host in found[0].message for host in bad)


def test_a_host_whose_own_ranks_fail_is_reported_before_any_pair() -> None:
    found = locate_fault(trial("gpu1", "gpu2", ok=False), {"gpu1": trial("gpu1"), "gpu2": trial("gpu2", ok=False)}, {})
    assert [(each.code, each.host) for each in found] == [("allreduce-host", "gpu2")]


def test_where_every_pair_works_no_host_is_blamed() -> None:
    hosts = ["gpu1", "gpu2", "gpu3"]
    (found,) = locate_fault(trial(*hosts, ok=False), {}, {pair: trial(*pair) for pair in combinations(hosts, 2)})
    assert found.code == "allreduce-together"
    assert "3 tried in pairs work" in found.message
    assert "NCCL_P2P_DISABLE" in found.fix


@pytest.mark.parametrize(("bus", "expected", "verdict"), [(10, 50, True), (30, 50, False), (10, None, False)])
def test_slow_is_less_than_half_of_the_link(bus: float, expected: float | None, verdict: bool) -> None:
    assert slow((AllReduceTime(1 << 28, 0.1, bus),), expected) is verdict


def test_a_slow_link_is_reported_among_the_pairs() -> None:
    hosts = ["gpu1", "gpu2", "gpu3", "gpu4"]
    pairs = {pair: trial(*pair, bus=1.0 if pair == ("gpu1", "gpu3") else 40.0) for pair in combinations(hosts, 2)}
    found = slow_link_finding(trial(*hosts, bus=1.0), 50.0, pairs)
    assert (found.code, found.error) == ("allreduce-slow", False)
    assert "gpu1 ↔ gpu3" in found.message


def test_tcp_beside_active_adapters_is_reported() -> None:
    chosen = NcclTransport(("P2P/CUMEM", "NET/Socket"))
    assert [f.code for f in transport_findings("gpu1", chosen, {"gpu1": ["mlx5_0"], "gpu2": ["mlx5_0"]})] == [
        "allreduce-socket"
    ]
    assert transport_findings("gpu1", chosen, {"gpu1": ["mlx5_0"], "gpu2": []}) == []


def test_adapters_without_gpu_direct_are_reported() -> None:
    (found,) = transport_findings("gpu1", NcclTransport(("NET/IB",), indirect=("mlx5_0",)), {"gpu1": ["mlx5_0"]})
    assert found.code == "allreduce-gdr"
    assert "mlx5_0" in found.message
