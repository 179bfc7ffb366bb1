"""The texts that users read are the ones under tests/fixtures/messages/, so that a review sees what changes."""

from __future__ import annotations

import difflib

import pytest

from tests.support.messages import COMMAND, FOLDER, by_room, messages

NOW = by_room()
KEPT = {path.name: path.read_text() for path in FOLDER.glob("*.txt")}


@pytest.mark.parametrize("room", sorted(NOW | KEPT))
def test_every_message_is_known(room: str) -> None:
    changed = difflib.unified_diff(KEPT.get(room, "").splitlines(), NOW.get(room, "").splitlines(), "kept", "now", n=0)
    assert not (lines := list(changed)), f"run `{COMMAND}` and commit what it writes:\n" + "\n".join(lines)


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
    assert messages(source) == found


def test_the_help_of_a_verb_is_a_message() -> None:
    source = 'def stop() -> None:\n    """End serving."""\n'
    assert (messages(source, verbs=True), messages(source)) == ({"End serving."}, set())
