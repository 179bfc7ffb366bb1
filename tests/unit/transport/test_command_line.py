"""Commands as they travel, decoded by a real shell."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.transport import command_line
from vllm_cluster.kernel.transport.base import Result

WORDS = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40), max_size=20)


def run(command: command_line.Command, rest: bytes = b"", shell: str = "sh") -> Result:
    done = subprocess.run(
        [shell, "-c", command_line.LINE], input=command.first + rest, capture_output=True, check=False
    )
    return Result(done.returncode, done.stdout, done.stderr)


# fault: kernel/transport/command_line.py: _ESCAPED = re.compile(rb"[^ -\[\]-~]") → _ESCAPED = re.compile(rb"[^ -~]")
@settings(max_examples=50, deadline=None)
@given(words=WORDS)
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_shell_gives_back_what_was_put_in(shell: str, words: list[str]) -> None:
    argv = ["printf", "%s\\0", "x", *words]
    for command in (command_line.without_timeout(argv), command_line.with_timeout(argv, 10)):
        result = run(command, shell=shell)
        assert command.started(result)
        assert command.own(result).stdout.split(b"\0")[1:-1] == [word.encode() for word in words]


def test_no_shell_reads_anything_in_the_line_in_its_own_way() -> None:
    inner = command_line.LINE.removeprefix(b"exec /bin/sh -c '").removesuffix(b"'")
    assert not set(b"'\\!\n") & set(inner) and inner.isascii()


def test_what_travels_is_one_printable_line_without_the_mark() -> None:
    command = command_line.with_timeout(["printf", "a\nb", "é'!\\"], 10)
    line, end, rest = command.first.partition(b"\n")
    assert (end, rest) == (b"\n", b"") and line.isascii() and line.decode().isprintable()
    assert command.mark not in command.first * 2, "a program that repeats its input would seem to have begun"


def test_the_rest_of_the_input_is_the_command_s() -> None:
    command, data = command_line.without_timeout(["cat"]), bytes(range(256)) * 300
    assert command.own(run(command, data)).stdout == data


def test_a_line_that_breaks_off_starts_nothing() -> None:
    command = command_line.without_timeout(["echo", "ran"])
    for length in (*range(0, len(command.first), 9), len(command.first) - 1):
        cut = command_line.Command(command.first[:length], command.mark)
        assert run(cut) == Result(1, b"", b"")


# fault: kernel/transport/command_line.py: result.stderr.endswith(self.mark) and result.stderr.count(self.mark) > 1 → False
def test_only_an_exit_code_255_is_sealed() -> None:
    for code in (0, 1, 254, 255):
        command = command_line.with_timeout(["sh", "-c", f"echo e >&2; exit {code}"], 10)
        result = run(command)
        assert command.own_255(result) == (code == 255)
        assert command.own(result) == Result(code, b"", b"e\n")


# fault: kernel/transport/command_line.py: partition(self.mark)[2] → replace(self.mark, b"")
def test_what_a_login_shell_prints_is_not_the_command_s() -> None:
    command = command_line.with_timeout(["sh", "-c", "echo out; echo err >&2"], 10)
    result = run(command)
    greeted = Result(0, b"Welcome!\n" + result.stdout, b"stty: no\n" + result.stderr)
    assert command.own(greeted) == Result(0, b"out\n", b"err\n")
    assert not command.started(Result(1, b"This account is currently not available.\n", b""))


@pytest.mark.parametrize("argv", [[], ["a\0"], ["\udfff"]])
def test_what_no_shell_takes_is_refused(argv: list[str]) -> None:
    for make in (
        command_line.without_timeout,
        lambda argv: command_line.with_timeout(argv, 1),
        command_line.posix_line,
    ):
        with pytest.raises(UsageError):
            make(argv)


def test_a_long_command_is_shown_short_and_on_one_line() -> None:
    assert command_line.shorten_command(["a", "b\nc"]) == "a 'b\\nc'"
    assert len(command_line.shorten_command(["x" * 500])) == 80
