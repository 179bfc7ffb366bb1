"""The program that sends a node's files: each line once with its rank and time, however the file grows or moves."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from vllm_cluster.features.logs.on_host.log_tail import MAX_LINE, Sender

ASKED: dict[str, Any] = {"follow": True, "previous": False, "rank": None, "group": False, "since": None, "skip": None}
INIT = "INFO 11-22 13:40:23 [parallel_state.py:1906] world_size=4 rank={} local_rank=0\n"


@pytest.fixture
def ray(tmp_path: Path) -> Path:
    """Ray's folder with a session of two ranks, and an earlier session."""
    for session, text in (("session_2026-11-22_13", "now"), ("session_2026-11-22_12", "before")):
        logs = tmp_path / session / "logs"
        logs.mkdir(parents=True)
        for rank in (2, 3):
            (logs / f"worker-{rank}-01-{rank}00.out").write_text(INIT.format(rank) + f"{text} {rank}\n")
    (tmp_path / "session_latest").symlink_to(tmp_path / "session_2026-11-22_13")
    return tmp_path


class Reader:
    """What a sender has printed so far."""

    def __init__(self, ray: Path, capsys: pytest.CaptureFixture[str], **asked: Any) -> None:
        self.offsets: dict[str, int] = {}
        self.ray, self.capsys, self.asked = ray, capsys, {**ASKED, **asked}
        self.again()

    def again(self) -> None:
        """Begin again after a cut."""
        self.sender = Sender({**self.asked, "offsets": self.offsets}, self.ray)
        self.names: dict[int, tuple[str, Any]] = {}

    def lines(self, *, live: bool = False) -> list[tuple[Any, str]]:
        """The next lines with their ranks."""
        return [(rank, text) for rank, _, text in self.rows(live=live)]

    def rows(self, *, live: bool = False) -> list[tuple[Any, int, str]]:
        """The same with their times."""
        self.sender.send(live=live)
        found = []
        for row in map(json.loads, self.capsys.readouterr().out.splitlines()):
            if isinstance(row, list):
                name, rank = self.names[row[0]]
                self.offsets[name] = row[2]
                found.append((rank, row[1], row[3]))
            elif "file" in row:
                self.names[row["file"]] = row["name"], row["rank"]
            else:
                self.asked["skip"] = row["skip"]
        return found


def log(ray: Path, rank: int) -> Path:
    """A rank's file."""
    return ray / f"session_2026-11-22_13/logs/worker-{rank}-01-{rank}00.out"


def add(path: Path, data: bytes) -> None:
    """Let it grow."""
    with path.open("ab") as file:
        file.write(data)


def test_each_line_comes_once_over_cuts_restarts_and_new_files(ray: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader = Reader(ray, capsys)
    texts = [text for _, text in reader.lines()]
    assert [text for text in texts if text.startswith("now")] == ["now 2", "now 3"]
    assert not any("before" in text for text in texts)
    add(log(ray, 2), b"one\ntwo\nhalf")
    assert reader.lines(live=True) == [(2, "one"), (2, "two")]
    reader.again()
    add(log(ray, 2), b" and half\r\n")
    assert reader.lines() == [(2, "half and half")]
    # Ray starts again while nothing is read: the rest of the old session, then the new one.
    add(log(ray, 3), b"last words\n")
    new = ray / "session_2026-11-22_14/logs"
    new.mkdir(parents=True)
    (new / "worker-9-01-900.err").write_bytes(b":job_id:01\nfrom rank?\n")
    (ray / "session_latest").unlink()
    (ray / "session_latest").symlink_to(new.parent)
    reader.again()
    assert reader.lines() == [(3, "last words"), (None, "from rank?")]
    (new / "worker-9-01-900.out").write_text(INIT.format(0))
    add(new / "worker-9-01-900.err", b"now it is known\n")
    assert (0, "now it is known") in reader.lines(live=True)


# fault: features/logs/on_host/log_tail.py: if written is None and not self._last: → if written is None:
def test_short_lines_take_no_more_than_their_number(ray: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """256 KB of them took 33 s, of which nothing was seen, and a file of 16 MB would have taken an hour."""
    add(log(ray, 2), b"x\n" * 100_000)
    reader = Reader(ray, capsys)
    began = time.thread_time()
    assert len(reader.lines()) == 100_000 + 4
    assert time.thread_time() - began < 5


def test_a_file_that_is_rotated_is_sent_to_its_end_and_from_its_beginning(
    ray: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = Reader(ray, capsys, rank=2)
    reader.lines()
    add(log(ray, 2), b"old\n")
    log(ray, 2).rename(log(ray, 2).with_suffix(".out.1"))
    log(ray, 2).write_text("new\n")
    assert [*reader.lines(live=True), *reader.lines(live=True)] == [(2, "old"), (2, "new")]


def test_a_file_that_is_gone_is_let_go_and_another_of_its_name_is_sent(
    ray: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = Reader(ray, capsys, rank=2)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - of names alone
    reader.lines()
    log(ray, 2).unlink()
    assert reader.lines(live=True) == []
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    log(ray, 2).write_text(INIT.format(2) + "a long line, so that it is longer than the one before\nnew\n")
    assert [text for _, text in reader.lines(live=True)][-1] == "new"


def test_one_rank_is_read_once_it_is_known(ray: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader = Reader(ray, capsys, rank=7)
    log(ray, 7).write_text("early\n")
    assert reader.lines() == []
    add(log(ray, 7), INIT.format(7).encode())
    assert next(text for _, text in reader.lines(live=True)) == "early"


def test_the_session_before(ray: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader = Reader(ray, capsys, previous=True, follow=False)
    assert [text for _, text in reader.lines() if "INFO" not in text] == ["before 2", "before 3"]


def test_a_line_without_an_end_comes_when_its_process_has_gone(ray: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader = Reader(ray, capsys, rank=2)
    reader.lines()
    add(log(ray, 2), b"Killed")
    assert reader.lines(live=True) == []
    os.utime(log(ray, 2), (1, 1))
    assert reader.lines(live=True) == [(2, "Killed")]
    assert reader.lines(live=True) == []


def test_of_a_long_line_the_beginning_and_of_bytes_what_is_text(ray: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = 3_000_000
    add(log(ray, 2), b"x" * size + b"\n\xff\x00\x1b[2J\n 10%\r 90%\n")
    reader = Reader(ray, capsys, rank=2)
    long, odd, bar = (text for _, text in reader.lines()[2:])
    assert long == "x" * MAX_LINE + f" ... [{size - MAX_LINE} bytes cut]"
    assert (odd, bar) == ("\ufffd\x00\x1b[2J", " 90%")


def test_lines_have_the_times_that_they_name_and_none_is_older_than_the_one_before(
    ray: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    log(ray, 2).write_text(
        "no time yet\nINFO 11-22 13:40:23 [a.py:1] world_size=2 rank=2 local\nTraceback\n"
        "[W1122 13:40:24.500000000 utils.cpp:41] w\n2026-11-22 13:40:25,250 INFO x\nINFO 11-22 13:40:01 [b.py:1] back\n"
    )
    os.utime(log(ray, 2), (1795354830, 1795354830))
    reader = Reader(ray, capsys, rank=2)
    base = 1795354823 * 10**9
    assert [at - base for _, at, _ in reader.rows()] == [0, 0, 0, 1_500_000_000, 2_250_000_000, 2_250_000_000]
