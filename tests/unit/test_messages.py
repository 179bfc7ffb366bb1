"""Which texts of the code are golden messages: errors, fixes and findings."""

from __future__ import annotations

import ast

import pytest

from tests.support.messages import messages


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('raise HostError(host, f"no answer within {seconds:.0f} s", hint="vcluster status")',
         {"no answer within {} s", "vcluster status"}),
        ('def f():\n    text = f"{a}: two words"\n    yield Finding("code", host, text, "on it: fix that")',
         {"{}: two words", "on it: fix that"}),
        ('problem = "one " + (f"and {n} more" if n else "none at all")', set()),
        ('return UsageError("one " + (f"and {n} more" if n else "none at all"))', {"and {} more", "none at all"}),
        ('fix = "vcluster up"', {"vcluster up"}),
        ('emit(Event("phase", "stopping it"))', set()),
        ('"""A docstring is no message."""', set()),
    ],
)  # fmt: skip
def test_what_counts_as_a_message(source: str, found: set[str]) -> None:
    assert messages(tuple(ast.walk(ast.parse(source)))) == found
