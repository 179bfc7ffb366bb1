"""The patterns of ssh."""

from __future__ import annotations

import fnmatch

from hypothesis import given
from hypothesis import strategies as st

from tests.support.bounds import within
from vllm_cluster.kernel.transport.wildcard import wildcard


# fault: kernel/transport/wildcard.py: at, here = star + 1, back → return False
# fault: kernel/transport/wildcard.py: char in ("?", text[here]) → char == text[here]
@given(st.text("ab*?"), st.text("ab"))
def test_it_matches_as_a_shell_does_without_sets(pattern: str, text: str) -> None:
    assert wildcard(pattern, text) == fnmatch.fnmatchcase(text, pattern)


def test_brackets_are_part_of_a_name() -> None:
    assert wildcard("[10.0.0.*]:22", "[10.0.0.7]:22")
    assert not wildcard("[ab]", "a")


def test_many_stars_take_no_time() -> None:
    """Of a line of known_hosts with 2,000 stars `status` never came back."""
    with within(2):
        assert not wildcard("*" * 2000 + "a", "b" * 200)
        assert not wildcard("*a" * 200 + "b", "a" * 200)
