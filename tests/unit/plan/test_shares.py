"""Several replicas get GPUs of their own: whole hosts first, and what runs stays where it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.plan.shares import Share, deal, most, replica_sizes

TWO = {"gpu1": 8, "gpu2": 8}


@pytest.mark.parametrize(
    ("nodes", "tp", "pp", "replicas", "sizes"),
    [
        (TWO, None, None, 2, (8, 1)),
        (TWO, None, None, 4, (4, 1)),
        (TWO, None, None, 3, (4, 1)),
        ({"a": 4, "b": 4, "c": 4, "d": 4}, None, None, 2, (4, 2)),
        ({"a": 8, "b": 4}, None, None, 2, (4, 1)),
        (TWO, 2, None, 5, (2, 1)),
        (TWO, None, 2, 8, (1, 2)),
    ],
)
def test_without_a_layout_it_follows_from_the_hosts(
    nodes: Mapping[str, int], tp: int | None, pp: int | None, replicas: int, sizes: tuple[int, int]
) -> None:
    assert replica_sizes(nodes, tp, pp, 1, replicas)[:2] == sizes


# fault: kernel/plan/shares.py: * dp, "GPU") → * dp, "GPUs")
def test_the_reason_counts_the_gpus_of_each() -> None:
    assert replica_sizes(TWO, 1, None, 1, 4)[2] == "4 replicas of 1 GPU (from the command line)"
    assert replica_sizes(TWO, 2, None, 1, 4)[2] == "4 replicas of 2 GPUs (from the command line)"


@pytest.mark.parametrize(
    ("nodes", "tp", "pp", "number"),
    [
        *[(TWO, None, None, 2), (TWO, 2, None, 8), (TWO, 8, 2, 1), ({"a": 3, "b": 4}, 2, None, 3), (TWO, 8, 4, 0)],
        # Neither two GPUs and one, nor the one of a host that has fewer.
        *[({"a": 2, "b": 2}, 3, None, 0), ({"a": 8, "b": 1}, 4, None, 2)],
    ],
)
def test_max_is_what_fits(nodes: Mapping[str, int], tp: int | None, pp: int | None, number: int) -> None:
    assert most(nodes, tp, pp, 1) == number


def dealt(nodes: Mapping[str, int], tp: int, size: int, replicas: int, **more: Any) -> tuple[Share, ...]:
    """The shares of so many replicas, in their order."""
    return tuple(deal(nodes, tp, size, range(replicas), **more).values())


def test_whole_hosts_come_first_then_parts_of_one() -> None:
    assert dealt(TWO, 8, 8, 2) == (Share({"gpu1": 8}), Share({"gpu2": 8}))
    assert dealt(TWO, 8, 16, 1) == (Share({"gpu1": 8, "gpu2": 8}),)
    assert dealt(TWO, 4, 4, 3) == (
        Share({"gpu1": 4}, {"gpu1": (0, 1, 2, 3)}),
        Share({"gpu1": 4}, {"gpu1": (4, 5, 6, 7)}),
        Share({"gpu2": 4}, {"gpu2": (0, 1, 2, 3)}),
    )


# fault: kernel/plan/shares.py: for index, share in kept.items(): → for index, share in {}.items():
def test_what_runs_stays_where_it_runs() -> None:
    kept = {1: Share({"gpu1": 8})}
    assert dealt(TWO, 8, 8, 2, kept=kept) == (Share({"gpu2": 8}), Share({"gpu1": 8}))


# fault: kernel/plan/shares.py: if one not in taken.get(name, ())] for → ] for
def test_a_gpu_of_another_model_is_not_given() -> None:
    taken = {"gpu1": frozenset({0, 1, 2, 3, 4, 5})}
    assert dealt(TWO, 2, 2, 1, taken=taken) == (Share({"gpu1": 2}, {"gpu1": (6, 7)}),)
    assert dealt(TWO, 8, 8, 1, taken=taken) == (Share({"gpu2": 8}),)
    with pytest.raises(UsageError, match="there are 2 on gpu1, 8 on gpu2"):
        dealt(TWO, 8, 16, 1, taken=taken)


def test_too_many_are_refused_with_what_there_is_and_what_fits() -> None:
    with pytest.raises(UsageError, match=r"^9 replicas of 2 GPUs each do not fit: there are 8 on gpu1, 8 on") as no:
        dealt(TWO, 2, 2, 9)
    assert no.value.hint == "give at most --replicas 8"
    with pytest.raises(UsageError) as no:
        dealt(TWO, 4, 32, 1)
    assert no.value.hint == "choose a smaller --tp or --pp"


@given(st.dictionaries(st.sampled_from("abcde"), st.integers(1, 8), min_size=1), st.integers(1, 8), st.integers(1, 12))
def test_no_gpu_is_given_twice_and_what_max_names_can_be_dealt(nodes: dict[str, int], tp: int, replicas: int) -> None:
    fits = most(nodes, tp, None, 1)
    if not 0 < replicas <= fits:
        return
    taken = [
        (host, one)
        for share in dealt(nodes, tp, tp, replicas)
        for host, number in share.gpus.items()
        for one in share.devices.get(host, range(number))
    ]
    assert len(taken) == len({*taken}) == replicas * tp
