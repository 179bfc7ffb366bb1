"""A container's log: with any content and however it is cut, each line comes once, whole and in bounded memory."""

from __future__ import annotations

import random

import pytest

from vllm_cluster.kernel.docker.log_frames import (
    MAX_LINE,
    LogFrames,
    OutputFrames,
    Position,
    StampedLine,
    Stamps,
    nanoseconds,
)


def stamp(number: int) -> bytes:
    """The time of a line."""
    return b"2026-11-22T13:41:%02d.%09dZ" % (number // 10**9, number % 10**9)


def frame(number: int, text: bytes, output: int = 1) -> bytes:
    """A frame as Docker sends it."""
    content = stamp(number) + b" " + text
    return bytes([output, 0, 0, 0]) + len(content).to_bytes(4, "big") + content


def read(data: bytes, size: int) -> list[StampedLine]:
    """The lines of bytes that come in pieces of this size."""
    frames, found = LogFrames(), list[StampedLine]()
    for at in range(0, len(data), size):
        found += frames.feed(data[at : at + size])
    return found


@pytest.mark.parametrize("size", [1, 7, 8, 39, 64, 10_000])
def test_lines_come_whole_however_the_stream_is_cut(size: int) -> None:
    lines = [(stamp(number), b"%d \xff\x00\x1b[31m" % number) for number in range(50)]
    assert read(b"".join(frame(n, text + b"\n") for n, (_, text) in enumerate(lines)), size) == lines


def test_a_line_in_parts_is_one_line_with_its_first_time_beside_another_output() -> None:
    data = frame(1, b"a" * 16384) + frame(2, b"other\n", output=2) + frame(1, b"b\n") + frame(3, b"next\n")
    assert read(data, 100) == [(stamp(2), b"other"), (stamp(1), b"a" * 16384 + b"b"), (stamp(3), b"next")]


def test_of_a_line_of_100_mb_the_beginning_is_kept() -> None:
    frames, part = LogFrames(), frame(1, b"x" * 16384)
    for _ in range(6400):
        assert frames.feed(part) == []
    ((_, text),) = frames.feed(frame(1, b"end\n"))
    assert text == b"x" * MAX_LINE + b" ... [%d bytes cut]" % (6400 * 16384 + 3 - MAX_LINE)
    assert len(frames._rest) == 0


def test_bytes_without_frames_are_refused() -> None:
    with pytest.raises(ValueError, match="a frame of"):
        LogFrames().feed(b"HTTP/1.1 500 Internal Server Error")
    with pytest.raises(ValueError, match="a frame of"):
        OutputFrames().parts(b"HTTP/1.1 500 Internal Server Error")


def test_times_are_read_to_the_nanosecond() -> None:
    stamps = Stamps()
    assert [stamps(stamp(n)) - stamps(stamp(0)) for n in (0, 1, 999_999_999, 10**9, 3)] == [0, 1, 999_999_999, 10**9, 3]
    assert nanoseconds(b"1970-01-01T00:00:01Z") == 10**9


@pytest.mark.parametrize("seed", range(50))
def test_after_any_cuts_each_line_has_come_once(seed: int) -> None:
    """Docker sends all from the first line on that is not older than what was asked for; times may go back."""
    chance = random.Random(seed)
    times = [0]
    for _ in range(chance.randint(1, 300)):
        times.append(max(0, times[-1] + chance.choice([0, 0, 1, 1, 5, -2])))
    log = [(stamp(at), b"%d" % number) for number, at in enumerate(times)]
    position, seen = Position(), list[StampedLine]()
    for cut in (*sorted(chance.randint(0, len(log)) for _ in range(8)), len(log)):
        since = position.resume() or 0
        begin = next(n for n, line in enumerate(log) if nanoseconds(line[0]) >= since)
        for at in range(begin, cut, 7):
            seen += position.fresh(log[at : min(cut, at + 7)])
    assert seen == log


def test_a_docker_that_leaves_out_older_lines_behind_others_makes_no_gap() -> None:
    position = Position()
    position.fresh([(stamp(at), b"") for at in (5, 3, 4, 5)])
    assert position.resume() == nanoseconds(stamp(5))
    assert position.fresh([(stamp(at), b"") for at in (5, 5, 6)]) == [(stamp(6), b"")]
