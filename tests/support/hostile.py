"""Hostile text, in how many cases it is tried, and the figure of each property."""

from __future__ import annotations

import contextlib
import io
import re
import threading
import unicodedata
from collections.abc import Callable, Iterator
from typing import TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.support.depth import cases
from tests.support.figures import record

CASES = cases(200, 2_000, 100_000)
# So many cases are made up at once: to begin takes longer than a case does.
BATCH = 50
ATTACKS = (
    "-oProxyCommand=touch x", "--privileged", "--trust-remote-code", "$(touch x)", "`touch x`", "x;touch x",
    "x\ntouch x", "x\nfix: touch x", "x\r  fix: touch x", "fix: touch x",
    "'", '"', "\\", "'\\''", "a'b\"c", "-", "--", "-x", "=", "a=b", "#", "~", "*", "{a,b}", "!!", "%h",
    "%%", "&", "|x", ">x", "\x1b]52;c;eA==\x07", "[bold]", "\x9b31m", "\u202e", "\x85", "\u2028", "../..", "a/../b",
    "/a/../b", "/x:ro", "me@-x",
)  # fmt: skip
# Any character but NUL, no half ones; and what attacks are made of, alone and in between.
anything = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
attack = st.sampled_from(ATTACKS)
hostile = st.one_of(anything, attack, st.tuples(anything, attack, anything).map("".join), attack.map("/".__add__))
many = settings(max_examples=CASES // BATCH, deadline=None, suppress_health_check=list(HealthCheck))
some = settings(
    max_examples=max(CASES // 20, cases(10, 100, 100)), deadline=None, suppress_health_check=list(HealthCheck)
)
T = TypeVar("T")


def batches(case: st.SearchStrategy[T]) -> st.SearchStrategy[list[T]]:
    """Many cases at once, for `many`."""
    return st.lists(case, min_size=BATCH, max_size=BATCH)


@contextlib.contextmanager
def recorded(promise: str, what: str, count: int = CASES) -> Iterator[None]:
    """The figure of a property: how many cases it held for."""
    passed = False
    try:
        yield
        passed = True
    finally:
        record(promise, what, f"{count} cases", passed)


def harmless(shown: str) -> bool:
    """Whether a terminal would only show it."""
    kinds = {unicodedata.category(char) for char in shown if char not in "\n\t"}
    return not kinds & {"Cc", "Cs"} and not re.search(
        "[\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]", shown
    )


class _OfThisThread(io.StringIO):
    """Text that one thread writes: what a verb of an earlier test left may still name what it waits for."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.current_thread()

    def write(self, text: str) -> int:
        return super().write(text) if threading.current_thread() is self._thread else len(text)


def shown_by(render: Callable[[], None]) -> str:
    """What a renderer writes, encoded as a terminal would want it."""
    sink = _OfThisThread()
    with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
        render()
    sink.getvalue().encode()
    return sink.getvalue()
