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
    assert dealt({"gpu1": 8, "gpu2": 4}, 4, 4, 1) == (Share({"gpu2": 4}),)


def hosts_of(nodes: Mapping[str, int], size: int, replicas: int, **more: Any) -> list[str]:
    """The host of each replica."""
    return [share.leader("") for share in dealt(nodes, size, size, replicas, **more)]


# fault: kernel/plan/shares.py: return own[one], len(free[one]) != size → return 0, len(free[one]) != size
# fault: kernel/plan/shares.py: own = Counter(host for share in found.values() for host in share.gpus) → own = Counter[str]()
def test_replicas_of_one_model_are_on_as_many_hosts_as_may_be() -> None:
    """Who has two of them wants an answer where one host is gone."""
    assert hosts_of({"gpu1": 2, "gpu2": 2}, 1, 2) == ["gpu1", "gpu2"]
    assert dealt(TWO, 4, 4, 3) == (
        Share({"gpu1": 4}, {"gpu1": (0, 1, 2, 3)}),
        Share({"gpu2": 4}, {"gpu2": (0, 1, 2, 3)}),
        Share({"gpu1": 4}, {"gpu1": (4, 5, 6, 7)}),
    )
    there = {index: Share({"gpu1": 1}, {"gpu1": (index,)}) for index in (0, 1)}
    assert hosts_of(TWO, 1, 2, kept=there) == ["gpu1", "gpu1"]
    assert hosts_of(TWO, 1, 4, kept=there) == ["gpu1", "gpu1", "gpu2", "gpu2"]
    # What is left beside another model is taken before a host that is whole.
    assert hosts_of(TWO, 1, 1, taken={"gpu2": frozenset(range(7))}) == ["gpu2"]


# fault: kernel/plan/shares.py: for index, share in kept.items(): → for index, share in {}.items():
def test_what_runs_stays_where_it_runs() -> None:
    kept = {1: Share({"gpu1": 8})}
    assert dealt(TWO, 8, 8, 2, kept=kept) == (Share({"gpu2": 8}), Share({"gpu1": 8}))


# fault: kernel/plan/shares.py: if one not in taken.get(name, ())] for → ] for
def test_a_gpu_of_another_model_is_not_given() -> None:
    taken = {"gpu1": frozenset({0, 1, 2, 3, 4, 5})}
    assert dealt(TWO, 2, 2, 1, taken=taken) == (Share({"gpu1": 2}, {"gpu1": (6, 7)}),)
    assert dealt(TWO, 8, 8, 1, taken=taken) == (Share({"gpu2": 8}),)
    with pytest.raises(UsageError, match="free are 2 on gpu1, 8 on gpu2"):
        dealt(TWO, 8, 16, 1, taken=taken)


# fault: kernel/plan/shares.py: fits = most(nodes, tp, size // tp, 1, taken) → fits = most(nodes, tp, size // tp, 1)
# fault: kernel/plan/shares.py: fits = most(nodes, tp, size // tp, 1, taken) → fits = most(there, size, 1, 1)
def test_too_many_are_refused_with_what_there_is_and_what_fits() -> None:
    with pytest.raises(UsageError, match=r"^9 replicas of 2 GPUs each do not fit: free are 8 on gpu1, 8 on") as no:
        dealt(TWO, 2, 2, 9)
    assert no.value.hint == "give at most --replicas 8"
    with pytest.raises(UsageError) as no:
        dealt(TWO, 4, 32, 1)
    assert no.value.hint == "choose a smaller --tp or --pp"
    taken = {"gpu1": frozenset({0}), "gpu2": frozenset({0})}
    with pytest.raises(UsageError, match="free are 1 on gpu1, 1 on gpu2, 2 on gpu3") as no:
        # What other models leave of two hosts is not joined.
        dealt(dict.fromkeys(("gpu1", "gpu2", "gpu3"), 2), 1, 2, 2, taken=taken)
    assert no.value.hint == "give at most --replicas 1"


# fault: kernel/plan/shares.py: one_each=sum(nodes.values()) >= replicas) → one_each=False)
def test_where_one_gpu_each_would_do_that_is_the_remedy() -> None:
    with pytest.raises(UsageError, match=r"^3 replicas cannot be as many on each host: free are 8 on a, 1 on b") as no:
        replica_sizes({"a": 8, "b": 1}, None, None, 1, 3)
    assert no.value.hint == "give at most --replicas 2, or --tp 1 too"
    with pytest.raises(UsageError, match=r"^5 replicas of 1 GPU each do not fit") as no:
        replica_sizes({"a": 2, "b": 2}, None, None, 1, 5)
    assert no.value.hint == "give at most --replicas 4"


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
