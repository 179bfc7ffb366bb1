"""The order in which hosts pass files on."""

from __future__ import annotations

from itertools import permutations

from vllm_cluster.core.chain import order_chain

HOSTS = ["a", "b", "c", "d", "e"]


def rates(**own: float) -> dict[tuple[str, str], float]:
    """The rates of all links between hosts of these rates: the slower end decides."""
    return {(one, other): min(own[one], own[other]) for one, other in permutations(own, 2)}


def test_equal_hosts_stay_in_their_order() -> None:
    measured = rates(a=10.0, b=9.1, c=10.4, d=7.0, e=9.9)
    assert order_chain("c", HOSTS, measured) == ["c", "a", "b", "d", "e"]


def test_slow_hosts_come_last_and_the_slowest_at_the_end() -> None:
    assert order_chain("a", HOSTS, rates(a=10, b=1, c=10, d=2.5, e=10)) == ["a", "c", "e", "d", "b"]


def test_a_slow_source_makes_no_other_host_slow() -> None:
    assert order_chain("a", HOSTS, rates(a=1, b=10, c=10, d=10, e=10)) == HOSTS


def test_a_host_that_sends_slowly_comes_last() -> None:
    measured = rates(a=10, b=10, c=10, d=10, e=10)
    measured |= {link: 2.0 for link in measured if link[0] == "b"}
    assert order_chain("a", HOSTS, measured) == ["a", "c", "d", "e", "b"]


def test_what_was_not_measured_counts_as_usual() -> None:
    assert order_chain("b", HOSTS, {}) == ["b", "a", "c", "d", "e"]
    assert order_chain("a", HOSTS, {("a", "b"): 10, ("a", "c"): 10, ("a", "d"): 2}) == ["a", "b", "c", "e", "d"]
