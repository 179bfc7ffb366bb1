"""Command lines, run by a real shell."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_cluster.core.errors import UsageError
from vllm_cluster.transport import _remote

WORDS = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40), max_size=20)


@settings(max_examples=50, deadline=None)
@given(words=WORDS)
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_shell_gives_back_what_was_put_in(shell: str, words: list[str]) -> None:
    argv = ["printf", "%s\\0", "x", *words]
    for line in (_remote.command_line(argv), _remote.bounded(argv, 10), _remote.bounded(argv, 10, seal="s")):
        done = subprocess.run([shell, "-c", line], capture_output=True, check=True)
        assert done.stdout.split(b"\0")[1:-1] == [word.encode() for word in words]


def test_a_seal_marks_255_alone() -> None:
    for code in (0, 1, 254, 255):
        line = _remote.bounded(["sh", "-c", f"echo e >&2; exit {code}"], 10, seal="abc")
        done = subprocess.run(["sh", "-c", line], capture_output=True, check=False)
        assert done.returncode == code
        assert done.stderr == (b"e\nabc" if code == 255 else b"e\n")


@pytest.mark.parametrize("argv", [[], ["a\0"], ["\udfff"]])
def test_what_no_shell_takes_is_refused(argv: list[str]) -> None:
    with pytest.raises(UsageError):
        _remote.command_line(argv)


def test_a_long_command_is_shown_short_and_on_one_line() -> None:
    assert _remote.shown(["a", "b\nc"]) == "a 'b\\nc'"
    assert len(_remote.shown(["x" * 500])) == 80
