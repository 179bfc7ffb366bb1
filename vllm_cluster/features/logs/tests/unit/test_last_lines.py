"""The last lines of a log, before what is still to come."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from vllm_cluster.features.logs.lines import LastLines, Line


def lines(*times: int) -> list[Line]:
    return [Line(at, "gpu1", "node", str(at)) for at in times]


def shown(tail: LastLines, takes: Sequence[Sequence[int]]) -> list[int]:
    """What is shown of these takes, an empty one being a moment without lines."""
    found = []
    for times in takes:
        found += tail.keep(lines(*times)) if times else tail.rest()
    return [line.at for line in [*found, *tail.rest()]]


def test_the_last_lines_of_a_log_that_ends() -> None:
    assert shown(LastLines(2, None), [[1, 2, 3], [4]]) == [3, 4]


def test_what_comes_later_is_all_shown_after_them() -> None:
    assert shown(LastLines(2, 10), [[1, 2, 3], [4], [10, 11, 12, 13], [14]]) == [3, 4, 10, 11, 12, 13, 14]


def test_they_are_shown_before_anything_new_comes() -> None:
    tail = LastLines(1, 10)
    assert shown(tail, [[1, 2], []]) == [2]


def test_none_of_them_are_asked_for() -> None:
    assert shown(LastLines(0, 10), [[1, 2], [], [10]]) == [10]


@given(st.lists(st.lists(st.integers(0, 20))), st.integers(0, 30))
def test_a_tail_longer_than_the_log_is_the_log(takes: list[list[int]], until: int) -> None:
    ordered, found = iter(sorted(at for take in takes for at in take)), []
    for take in takes:
        found.append([next(ordered) for _ in take])
    assert shown(LastLines(1000, until), found) == [at for take in found for at in take]
