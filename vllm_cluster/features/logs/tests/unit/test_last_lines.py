"""The last lines of a log, before what is still to come."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_cluster.features.logs.lines import LastLines, Line
from vllm_cluster.kernel.events import Event


def quietly(event: Event) -> None:
    """Of one host's lines there is nothing to note."""
    raise AssertionError(event)


def lines(*times: int) -> list[Line]:
    return [Line(at, "gpu1", "node", str(at)) for at in times]


def shown(tail: LastLines, takes: Sequence[Sequence[int]]) -> list[int]:
    """What is shown of these takes, an empty one being a moment without lines."""
    found = []
    for times in takes:
        found += tail.keep(lines(*times)) if times else tail.rest()
    return [line.at for line in [*found, *tail.rest()]]


def test_the_last_lines_of_a_log_that_ends() -> None:
    assert shown(LastLines(2, None, quietly), [[1, 2, 3], [4]]) == [3, 4]


def test_what_comes_later_is_all_shown_after_them() -> None:
    assert shown(LastLines(2, 10, quietly), [[1, 2, 3], [4], [10, 11, 12, 13], [14]]) == [3, 4, 10, 11, 12, 13, 14]


def test_they_are_shown_before_anything_new_comes() -> None:
    tail = LastLines(1, 10, quietly)
    assert shown(tail, [[1, 2], []]) == [2]


def test_none_of_them_are_asked_for() -> None:
    assert shown(LastLines(0, 10, quietly), [[1, 2], [], [10]]) == [10]


@given(st.lists(st.lists(st.integers(0, 20))), st.integers(0, 30))
def test_a_tail_longer_than_the_log_is_the_log(takes: list[list[int]], until: int) -> None:
    ordered, found = iter(sorted(at for take in takes for at in take)), []
    for take in takes:
        found.append([next(ordered) for _ in take])
    assert shown(LastLines(1000, until, quietly), found) == [at for take in found for at in take]


# fault: features/logs/lines.py: len(shown) == 1 and → len(shown) == 9 and
# fault: features/logs/lines.py: (others := sorted(self._hosts - shown)) → (others := sorted(self._hosts))
# fault: features/logs/lines.py: self._hosts.clear() → pass
@pytest.mark.parametrize(
    ("hosts", "last", "noted"),
    [
        (("gpu1", "gpu2", "gpu3", "gpu3"), 2, [("gpu3", "gpu1 and 1 more")]),
        (("gpu1", "gpu3", "gpu3"), 2, [("gpu3", "gpu1")]),
        (("gpu1", "gpu3", "gpu3"), 3, []),
        (("gpu3", "gpu3", "gpu3"), 2, []),
        (("gpu1", "gpu2"), 0, []),
    ],
)
def test_a_host_whose_lines_leave_none_of_others_is_noted(
    hosts: tuple[str, ...], last: int, noted: list[tuple[str, str]]
) -> None:
    """A host that printed much, of a year to come, hid the lines of all others without a note."""
    events = list[Event]()
    tail = LastLines(last, 10, events.append)
    for at, host in enumerate(hosts):
        assert tail.keep([Line(at, host, "node", "x")]) == []
    assert len(tail.rest()) == min(last, len(hosts))
    tail.keep([Line(9, hosts[-1], "node", "x")])
    tail.rest()
    assert [(one.kind, one.host) for one in events] == [("note", host) for host, _ in noted]
    assert all(f"the last 2 lines are all its own; {others} had lines" in events[0].text for _, others in noted)
