"""What is picked out of a node's files: bounded, with its line numbers, trouble in the middle kept."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.clock import Clock
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.hosts.program import RemoteProgram, RunningProgram
from vllm_cluster.kernel.hosts.runtime import SYSTEM
from vllm_cluster.kernel.transport.base import Stream
from vllm_cluster.serving.explain import logs
from vllm_cluster.serving.explain.logs import MAX_FILES, MAX_PIECES, STOPPED_LOG, STOPPED_SECONDS, _stopped, by_file
from vllm_cluster.serving.explain.on_host import log_excerpt


def printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, list[tuple[int, bytes]]]:
    """What the excerpt of these folders has, by file."""
    log_excerpt.main(str(tmp_path / "state"), str(tmp_path / "ray"))
    return {log.name: list(log.parts) for log in by_file("gpu1", map(json.loads, capsys.readouterr().out.splitlines()))}


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """An empty node."""
    (tmp_path / "state").mkdir()
    (tmp_path / "ray").mkdir()
    return tmp_path


def test_short_files_come_whole(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folders / "state" / "serve.log").write_bytes(b"one\ntwo \xff\n")
    (folders / "ray" / "worker-1.err").write_text("three\n")
    (folders / "ray" / "worker-2.out").write_text("")
    found = printed(folders, capsys)
    assert found["serve.log"] == [(1, "one\ntwo \ufffd\n".encode())]
    assert found["ray/worker-1.err"] == [(1, b"three\n")]
    assert "ray/worker-2.out" not in found
    assert "python" in json.loads(found["versions.json"][0][1])


# fault: serving/explain/on_host/log_excerpt.py: state.glob("serve-*.log*") → state.glob("none")
def test_each_replica_s_log_is_read(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folders / "state" / "serve.log").write_text("one\n")
    (folders / "state" / "serve-1.log").write_text("two\n")
    assert printed(folders, capsys)["serve-1.log"] == [(1, b"two\n")]


# fault: serving/explain/logs.py: if ends.get(name) == one.line: → if False:
def test_of_a_long_file_the_ends_and_the_trouble(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"line {number} is calm\n" for number in range(1, 40_001)]
    lines[19_999] = "CUDA error: out of memory\n"
    (folders / "state" / "serve.log").write_text("".join(lines))
    # Lines that follow each other are one piece: a traceback is read as a whole.
    (one, beginning), (two, trouble), (_, end) = printed(folders, capsys)["serve.log"]
    assert (one, two) == (1, 20_000)
    assert beginning.startswith(b"line 1 is calm\nline 2 is calm\n")
    assert trouble == b"CUDA error: out of memory\n"
    assert end.endswith(b"line 39999 is calm\nline 40000 is calm\n")


# fault: serving/explain/on_host/log_excerpt.py: if left < 0: → if not left:
def test_all_of_it_has_an_end(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(100):
        (folders / "ray" / f"worker-{number}.err").write_text(("failed " * 100 + "\n") * 300)
    log_excerpt.main(str(folders / "state"), str(folders / "ray"))
    assert len(capsys.readouterr().out) <= log_excerpt.MAX_BYTES


# fault: serving/explain/on_host/log_excerpt.py: key=_modified, reverse → key=lambda path: path.stat().st_mtime, reverse
def test_a_worker_that_vanishes_costs_its_own_log_alone(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folders / "ray" / "worker-1.err").write_text("three\n")
    (folders / "ray" / "worker-2.err").symlink_to(folders / "gone")
    assert printed(folders, capsys)["ray/worker-1.err"] == [(1, b"three\n")]


ODD: tuple[dict[str, object], ...] = ({}, {"level": "INFO"}, {"file": "x", "line": "1", "text": "y"}, {"file": []})
# Python refuses to print a number of more than 4300 digits.
LARGE: dict[str, object] = {"file": "x", "line": 10**4300 - 1, "text": "y\nERROR z\n"}


@pytest.mark.parametrize("row", [*ODD, LARGE, {**LARGE, "line": -1}, {**LARGE, "line": True}])
def test_what_no_excerpt_prints_is_passed_over(row: dict[str, object]) -> None:
    assert by_file("gpu1", [row]) == []


# fault: serving/explain/logs.py: if len(found) > MAX_FILES: → if len(found) > 1 << 20:
@pytest.mark.promise("P23")
def test_a_host_names_no_number_of_logs_that_fills_the_memory() -> None:
    rows = [{"file": f"{number}", "line": 1, "text": "ERROR x\n"} for number in range(MAX_FILES)]
    assert len(by_file("gpu1", rows)) == MAX_FILES > len(log_excerpt.paths(Path("/"), Path("/"))) + 2 * 48
    with pytest.raises(HostError, match=f"gpu1: its excerpt has more than {MAX_FILES} files"):
        by_file("gpu1", [*rows, {"file": "one more", "line": 1, "text": ""}])


# fault: serving/explain/logs.py: if pieces > MAX_PIECES: → if False:
@pytest.mark.promise("P23")
def test_a_host_makes_no_number_of_pieces_that_takes_minutes() -> None:
    """Each is looked through by itself: 113,000 took 80 s and 76 MB."""
    rows = [{"file": f"{number % 9}", "line": 2 * number, "text": ""} for number in range(MAX_PIECES + 1)]
    assert len(by_file("gpu1", rows[:-1])) == 9
    with pytest.raises(HostError, match=f"gpu1: its excerpt has more than {MAX_PIECES} pieces"):
        by_file("gpu1", rows)


# fault: serving/explain/logs.py: by_file(node.host, running.messages(due)) → by_file(node.host, list(running.messages(due)))
@pytest.mark.promise("P23")
def test_rows_of_an_excerpt_are_read_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = b"{}\n" * 50_000 + b'{"file": "serve.log", "line": 1, "text": "x"}\n'
    whole = Deadline.after(600)

    def start(_connection: object, program: RemoteProgram, *_: object) -> RunningProgram:
        return RunningProgram("gpu1", program, cast(Stream, Printed(printed)), whole)

    monkeypatch.setattr(logs, "start", start)
    node: Any = SimpleNamespace(host="gpu1", name="n", connection=SimpleNamespace(runtime=SYSTEM))
    tracemalloc.start()
    try:
        assert [log.name for log in logs._inside(node)] == ["serve.log"]
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()


class Printed:
    """What a host sends."""

    def __init__(self, content: bytes) -> None:
        self._content = memoryview(content)

    def settimeout(self, seconds: float) -> None:
        """It never waits."""

    def recv(self, most: int) -> bytes:
        data, self._content = self._content[:most], self._content[most:]
        return bytes(data)

    def exit_code(self) -> int:
        return 0

    def stderr_tail(self) -> str:
        return ""

    def close(self) -> None:
        """Nothing is left."""


# fault: serving/explain/logs.py: or b"")[-kept:] → or b"")[-STOPPED_LOG:]
# fault: serving/explain/logs.py: if not until.left(): → if False:
@pytest.mark.promise("P23")
@pytest.mark.parametrize("seconds", [0, 50])
def test_a_stopped_node_names_no_number_of_logs_that_fills_the_memory_or_the_time(seconds: float) -> None:
    """Its order is the host's word: 4,096 replicas, of each a log that drips."""
    clock, rows = Clock(), [SimpleNamespace(index=index) for index in range(100)]

    def read(_name: str, _most: int) -> bytes:
        clock.sleep(seconds)
        return b"x" * (STOPPED_LOG // 4) + b"END"

    runtime = SimpleNamespace(after=lambda length: Deadline.after(length, clock))
    node: Any = SimpleNamespace(
        host="gpu1",
        connection=SimpleNamespace(runtime=runtime),
        order=lambda: SimpleNamespace(deployments=rows),
        read=read,
    )
    began = clock.monotonic()
    found = _stopped(node)
    assert clock.monotonic() - began < STOPPED_SECONDS + 2 * 50
    assert len(found) == (3 if seconds else 101)
    assert all(log.parts[0][1].endswith(b"END") for log in found)
    assert sum(len(log.parts[0][1]) for log in found) < 2 * STOPPED_LOG
