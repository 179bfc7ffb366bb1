"""What a program on a host prints is read as objects, bounded, and its end is shown with its last words."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from tests.support.bounds import within
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import HostError, TimedOut
from vllm_cluster.kernel.hosts.program import MAX_BYTES, MAX_LINE, RemoteProgram, RunningProgram
from vllm_cluster.kernel.transport.base import Stream
from vllm_cluster.wire.programs import BenchReply, BenchStarted, EngineLoad, FedRow, LinkPorts, RanksReady


class Pieces:
    """A stream that has some pieces, and then no more."""

    def __init__(self, *pieces: bytes, ends: bool = True) -> None:
        self._pieces, self._ends = list(pieces), ends

    def settimeout(self, seconds: float | None) -> None:
        """As short as it is."""

    def recv(self, _size: int) -> bytes:
        if not self._pieces and not self._ends:
            raise TimeoutError
        return self._pieces.pop(0) if self._pieces else b""

    def exit_code(self) -> int:
        return 1

    def stderr_tail(self) -> str:
        return "docker: Error response from daemon\n"


def reading(*pieces: bytes, ends: bool = True, seconds: float = 60.0) -> RunningProgram:
    """What is read of these pieces."""
    stream, whole = cast(Stream, Pieces(*pieces, ends=ends)), Deadline.after(seconds)
    return RunningProgram("gpu1", RemoteProgram("test", (), seconds), stream, whole)


# fault: kernel/hosts/program.py: min(deadline.left(), self._whole.left()) → deadline.left()
def test_a_host_that_gives_a_little_now_and_then_gives_for_as_long_as_the_program_may_take() -> None:
    """Its reader allows a minute for each line."""
    drip = reading(*[b'{"a": 1}\n'] * 400_000, seconds=0.05)
    with pytest.raises(TimedOut, match="did not answer in time"):
        while True:
            drip.next(Deadline.after(60))


def test_objects_are_read_however_they_are_cut_and_greetings_are_not() -> None:
    lines = reading(b'Welcome!\n[1]\n{"a"', b': 1}\n{"b": 2}\n')
    assert [lines.next(Deadline.after(1)) for _ in range(2)] == [{"a": 1}, {"b": 2}]


# fault: kernel/hosts/program.py: return convert(kind, row, program) → return kind(**row)
@pytest.mark.parametrize(
    ("kind", "row", "why"),
    [
        (RanksReady, b'{"speed": 1e400}', "speed must be an integer"),
        (LinkPorts, b'{"open": [70000], "taken": [], "chosen": [], "udp": 1}', "open.0 must be from 1 to 65535"),
        (FedRow, b'{"have": [-1], "whole": [false]}', "have.0 must be from 0 to 10000000000000"),
        (EngineLoad, b'{"now": NaN, "requests": {}}', "now must be from 0.0 to 1e+18"),
        (BenchReply, b'{"result": {"a": 1}, "reasons": "x"}', "reasons must be a list"),
        (BenchStarted, b'{"context": "8"}', "context must be an integer"),
    ],
)
def test_a_message_of_another_shape_names_host_program_field_and_limit(
    kind: type[object], row: bytes, why: str
) -> None:
    with pytest.raises(HostError) as refused:
        reading(row + b"\n").read(kind, Deadline.after(1))
    assert refused.value.message == f"gpu1: test: its output cannot be read: {why}"


def test_the_end_is_reported_with_the_last_words() -> None:
    with pytest.raises(HostError, match="gpu1: its program does not run: docker: Error response from daemon"):
        reading(b'{"a": ').next(Deadline.after(1))


def test_silence_ends_with_the_deadline() -> None:
    with pytest.raises(TimedOut):
        reading(ends=False).next(Deadline.after(0.01))
    with pytest.raises(TimedOut):
        reading(b"x\n" * 10, ends=False).next(Deadline.after(0))


@pytest.mark.parametrize("piece", [b"x" * MAX_LINE, b"x\n" * (MAX_LINE // 2)])
def test_output_without_end_is_cut_off(piece: bytes) -> None:
    with pytest.raises(HostError, match="printed too much"):
        reading(*[piece] * (MAX_BYTES // MAX_LINE + 2)).next(Deadline.after(60))


# fault: kernel/hosts/program.py: MIN_MESSAGE = 40 → MIN_MESSAGE = 0
@pytest.mark.parametrize("read", [RunningProgram.finish, lambda running, due: [*running.messages(due)]])
def test_a_million_empty_messages_are_too_much(read: Callable[[RunningProgram, Deadline], object]) -> None:
    """They took 105 MB, or 8 s where each is looked at and left."""
    assert len(reading(*[b"{}\n" * 20_000] * 5).finish(Deadline.after(60)).messages) == 100_000
    with within(20, megabytes=40), pytest.raises(HostError, match="gpu1: its program printed too much"):
        read(reading(*[b"{}\n" * 20_000] * 50), Deadline.after(60))


def test_nesting_without_end_is_a_line_like_any_other() -> None:
    assert reading(b"[" * 50_000 + b'\n{"a": 1}\n').next(Deadline.after(1)) == {"a": 1}
