"""The texts that users read are the ones under tests/fixtures/messages/, so that a review sees what changes."""

from __future__ import annotations

import ast
import difflib

import pytest

from tests.support.messages import COMMAND, FOLDER, by_room, messages


def test_every_message_is_known() -> None:
    now, kept = by_room(), {path.name: path.read_text() for path in FOLDER.glob("*.txt")}
    lines = [
        line
        for room in sorted(now | kept)
        for line in difflib.unified_diff(kept.get(room, "").splitlines(), now.get(room, "").splitlines(), room, n=0)
    ]
    assert not lines, f"run `{COMMAND}` and commit what it writes:\n" + "\n".join(lines)


def found_in(source: str, *, verbs: bool = False) -> set[str]:
    return messages(tuple(ast.walk(ast.parse(source))), verbs=verbs)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('raise HostError(host, f"no answer within {seconds:.0f} s", hint="vcluster status")',
         {"no answer within {} s", "vcluster status"}),
        ('text = f"{a}: two words"', {"{}: two words"}),
        ('emit(Event("phase", "stopping"))', {"phase", "stopping"}),
        ('"""A docstring is no message."""', set()),
        ('found = re.compile("two words")', set()),
        ('key = "io.vcluster.node"', set()),
        ('text = "one " + (f"and {n} more" if n else "none at all")', {"and {} more", "none at all"}),
    ],
)  # fmt: skip
def test_what_counts_as_a_message(source: str, found: set[str]) -> None:
    assert found_in(source) == found


def test_the_help_of_a_verb_is_a_message() -> None:
    source = 'def stop() -> None:\n    """End serving."""\n'
    assert (found_in(source, verbs=True), found_in(source)) == ({"End serving."}, set())
