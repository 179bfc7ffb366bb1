"""What a host sends is only text, on a terminal and for programs."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.hostile import attack, batches, harmless, hostile, many, recorded, shown_by, some
from vllm_cluster.kernel.errors import CommandFailed
from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.shell_line import Pasted
from vllm_cluster.kernel.terminal import errors, events, printable
from vllm_cluster.serving.status.render import show_status
from vllm_cluster.serving.status.status import ClusterStatus, HostStatus

# All the cases take minutes.
pytestmark = pytest.mark.timeout(3600)

any_text = st.one_of(st.text(st.characters(), max_size=60), hostile, st.lists(attack, max_size=5).map("".join))


# fault: kernel/terminal/printable.py: _CONTROL.sub("", ESCAPES.sub("", → str(str(
def test_no_text_from_elsewhere_steers_a_terminal() -> None:
    def ensure_plain(said: str) -> None:
        plain = printable.plain(said)
        assert harmless(plain) and max(map(len, plain.split("\n"))) <= printable.MAX_LINE + 2
        error = CommandFailed("gpu1", said, exit_code=1, stderr=said, hint=said)
        assert harmless(shown_by(lambda: errors.write_error(error, Pasted, as_json=False, color="never")))
        assert harmless(shown_by(lambda: events.LineRenderer(1).show(Event("progress", said, "gpu1"))))
        for line in (
            shown_by(lambda: events.json_lines(Event("note", said, "gpu1"))),
            shown_by(lambda: errors.write_error(error, Pasted, as_json=True, color="never")),
        ):
            assert line.isascii() and "\x1b" not in line and line.count("\n") == 1
            assert json.loads(line)["event"] in ("note", "error")

    @many
    @given(batches(any_text))
    def check(texts: list[str]) -> None:
        for said in texts:
            ensure_plain(said)

    with recorded("P23", "any text through lines, errors and JSON"):
        check()


def test_no_text_from_elsewhere_steers_a_table() -> None:
    @some
    @given(any_text)
    def check(said: str) -> None:
        row = HostStatus("gpu1", "10.0.0.1", said, said, said, 2, 2, said, said, 3.0)
        shown = shown_by(
            lambda: show_status(ClusterStatus("lab", None, False, (row,), None, ()), Pasted, color="never")
        )
        assert harmless(shown)

    with recorded("P23", "any text through the table of status", some.max_examples):
        check()


def test_plain_text_is_left_as_it_is_and_a_flood_is_cut() -> None:
    usual = "ValueError: can't load 'ü' [rank 0]: 100 %\n\tat line 3 — ☃"
    assert printable.plain(usual) == usual
    assert len(printable.plain("x\n" * (50 << 20))) <= printable.MAX_TEXT + 10
