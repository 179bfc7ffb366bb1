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
from vllm_cluster.kernel.docker.parse import container
from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.explain.diagnosis import diagnose
from vllm_cluster.kernel.explain.scan import LogSource, scan
from vllm_cluster.kernel.hosts.program import RemoteProgram, RunningProgram
from vllm_cluster.kernel.hosts.runtime import SYSTEM
from vllm_cluster.kernel.transport.base import Stream
from vllm_cluster.serving.explain import logs
from vllm_cluster.serving.explain.logs import (
    ALL_HOSTS,
    MAX_FILES,
    MAX_PIECE,
    MAX_PIECES,
    ONE_HOST,
    STOPPED_SECONDS,
    _stopped,
    by_file,
    collect,
)
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


# fault: serving/explain/logs.py: if ends.get(name) == line: → if False:
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


# fault: serving/explain/on_host/log_excerpt.py: b"vcluster st", → b"vcluster_st",
def test_of_a_long_file_every_stop_is_kept_that_vcluster_made(
    folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ends of its rolls were kept for the word "died", and the stops above them not: so many ranks were killed."""
    attempt = "2026-11-21T02:{0}:00Z vcluster starts vLLM\n"
    attempt += "(APIServer pid=1) INFO 11-21 02:{0}:01 [utils.py:1] non-default args: {{'model': 'm'}}\n"
    attempt += "(APIServer pid=1) INFO:     Application startup complete.\n" + "calm\n" * 5000
    stop = "2026-11-21T02:{0}:30Z vcluster stops vLLM\n"
    stop += (
        "(EngineCore pid=2) ERROR 11-21 02:{0}:30 [m.py:1] Worker proc VllmWorker-1 died unexpectedly, shutting down.\n"
    )
    rolls = "".join((attempt + stop).format(minute) for minute in range(10, 40))
    (folders / "state" / "serve.log").write_text(rolls + attempt.format(50))
    found = printed(folders, capsys)["serve.log"]
    seen = [scan(LogSource("gpu1:serve.log", found, "gpu1"))]
    assert len(found) > 20
    assert (diagnose(seen).result, diagnose(seen).previous_attempts) == ("healthy", ())


# fault: serving/explain/on_host/log_excerpt.py: if size and size + min(len(line), LINE) > PIECE: → if size:
def test_short_lines_of_one_file_leave_room_for_the_others(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In rows of one character the ends of one file were all that was read of a host."""
    (folders / "state" / "serve.log.1").write_bytes(b"x\n" * 200_000 + b"CUDA error\n" + b"x\n" * 200_000)
    (folders / "state" / "serve.log").write_text("the cause\n")
    (folders / "ray" / "worker-1.out").write_bytes(b"\n" * 1_000_000 + b"yes " * 800_000)
    (folders / "ray" / "worker-2.err").write_text("three\n")
    found = printed(folders, capsys)
    (_, beginning), (at, trouble), (last, end) = found["serve.log.1"]
    assert (at, trouble) == (200_001, b"CUDA error\n")
    assert (len(beginning), last + end.count(b"\n")) == (log_excerpt.HEAD, 400_002)
    assert found["serve.log"] == [(1, b"the cause\n")]
    assert found["ray/worker-2.err"] == [(1, b"three\n")]
    assert found["ray/worker-1.out"][-1][1].startswith(b"yes yes")


SECRET = "q7Zr-Kx0vT_dB3mYw9LhC2nJ5sUeXo8AfGiPk4tRyWc"


# fault: serving/explain/on_host/log_excerpt.py: yield begin, f"{_cut(block[begin:at]) → yield begin, f"{block[begin:at][:LINE]
# fault: serving/explain/on_host/log_excerpt.py: else _LAST_WORD.sub(b" [...]\n", line[:LINE], count=1) → else line[:LINE] + b"\n"
# fault: serving/explain/on_host/log_excerpt.py: |[\s"',;][^\s"',;]*|\A → |\A
@pytest.mark.promise("P13")
@pytest.mark.parametrize("sign", [" ", '","'])
@pytest.mark.parametrize("trouble", ["", "ERROR"])
@pytest.mark.parametrize("there", [1, 6, 20, len(SECRET)])
def test_no_part_of_a_secret_is_left_where_a_line_is_cut(
    folders: Path, capsys: pytest.CaptureFixture[str], sign: str, trouble: str, there: int
) -> None:
    """On the laptop only the whole secret is known."""
    fill = log_excerpt.LINE - there - len(sign) - len("asked ERROR ")
    line = f"asked {trouble or 'calm.'} {'x' * (fill - 1000)}{sign}{'x' * (1000 - len(sign))}{sign}{SECRET}{sign}more\n"
    calm = "INFO a line\n" * 20_000
    (folders / "state" / "serve.log").write_text(calm + line + calm if trouble else line + calm)
    shown = b"".join(part for _, part in printed(folders, capsys)["serve.log"]).decode()
    assert "asked" in shown and " [...]\n" in shown and SECRET[:1] not in shown


# fault: serving/explain/on_host/log_excerpt.py: end = text.rfind("\n") + 1 or len(text) → end = len(text)
def test_no_part_of_a_line_is_left_where_the_room_ends(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(40):
        (folders / "ray" / f"worker-{number}.err").write_text(f"{SECRET}\n" * 1000)
    for most in (700_000, 703_000, 706_000, 709_000):
        log_excerpt.main(str(folders / "state"), str(folders / "ray"), most)
        (_, *rows) = map(json.loads, capsys.readouterr().out.splitlines())
        assert sum(len(row["text"]) for row in rows) > 600_000
        assert "".join(row["text"] for row in rows).replace(f"{SECRET}\n", "") == ""


# fault: serving/explain/on_host/log_excerpt.py: if left < 0: → if not left:
def test_all_of_it_has_an_end(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(100):
        (folders / "ray" / f"worker-{number}.err").write_text(("failed " * 100 + "\n") * 300)
    log_excerpt.main(str(folders / "state"), str(folders / "ray"))
    assert len(capsys.readouterr().out) <= log_excerpt.MAX_BYTES


# fault: serving/explain/on_host/log_excerpt.py: int(TAIL * part) → TAIL
# fault: serving/explain/on_host/log_excerpt.py: left = most - → left = MAX_BYTES -
def test_of_many_hosts_each_prints_a_part(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("serve.log.1", "serve.log", "crash.log"):
        (folders / "state" / name).write_text(("calm " * 40 + "\n") * 5000 + f"the end of {name}\n")
    for number in range(40):
        (folders / "ray" / f"worker-{number}.err").write_text("calm\n" * 1600)
    log_excerpt.main(str(folders / "state"), str(folders / "ray"), 125_000)
    printed = capsys.readouterr().out
    assert len(printed) <= 125_000
    assert all(f"the end of {name}\\n" in printed for name in ("serve.log.1", "serve.log", "crash.log"))


# fault: serving/explain/on_host/log_excerpt.py: text.read(PIECE - len(kept)) → text.read(HEAD + TAIL)
def test_no_row_is_longer_than_is_read(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row is held in four times its bytes, of 32 hosts at once."""
    (folders / "state" / "serve.log").write_text("\N{GRINNING FACE}" * 40_000 + "\nlast")
    found = printed(folders, capsys)["serve.log"]
    assert found == [(1, ("\N{GRINNING FACE}" * 40_000 + "\nlast").encode())]
    log_excerpt.main(str(folders / "state"), str(folders / "ray"))
    assert max(map(len, capsys.readouterr().out.splitlines())) <= MAX_PIECE


# fault: serving/explain/logs.py: share(hosts, ALL_HOSTS, ONE_HOST) → ONE_HOST
# fault: serving/explain/logs.py: max_bytes=most + BESIDE → max_bytes=4 << 20
@pytest.mark.promise("P23")
@pytest.mark.parametrize("hosts", [1, 64])
def test_the_logs_of_all_hosts_have_one_bound(monkeypatch: pytest.MonkeyPatch, hosts: int) -> None:
    """Of 64 hosts they took 702 MB. The excerpt has its share as an argument; what is longer is an error."""
    share, asked = min(ONE_HOST, ALL_HOSTS // hosts), list[str]()
    rows = json.dumps({"file": "serve.log", "line": 1, "text": "x" * 90_000}).encode() + b"\n"

    def start(_connection: object, program: RemoteProgram, *_: object) -> RunningProgram:
        asked.append(program.argv[-1])
        stream = Printed(rows * (1 + (share + 200_000) // len(rows)))
        return RunningProgram("gpu1", program, cast(Stream, stream), Deadline.after(60))

    monkeypatch.setattr(logs, "start", start)
    there = container({"Id": "1", "State": {"Status": "running", "StartedAt": "2026-11-21T02:00:00Z"}})
    host = SimpleNamespace(name="gpu1", docker=SimpleNamespace(container_info=lambda _: there), runtime=SYSTEM)
    with pytest.raises(HostError, match="gpu1: its program printed too much"):
        collect(cast(Any, host), "lab", hosts)
    assert asked == [str(share)]


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
    printed = (
        json.dumps({"text": "x" * 500}).encode() + b"\n"
    ) * 6000 + b'{"file": "serve.log", "line": 1, "text": "x"}\n'
    whole = Deadline.after(600)

    def start(_connection: object, program: RemoteProgram, *_: object) -> RunningProgram:
        return RunningProgram("gpu1", program, cast(Stream, Printed(printed)), whole)

    monkeypatch.setattr(logs, "start", start)
    node: Any = SimpleNamespace(host="gpu1", name="n", connection=SimpleNamespace(runtime=SYSTEM))
    tracemalloc.start()
    try:
        assert [log.name for log in logs._inside(node, 4 << 20)] == ["serve.log"]
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
        return data.tobytes()

    def exit_code(self) -> int:
        return 0

    def stderr_tail(self) -> str:
        return ""

    def close(self) -> None:
        """Nothing is left."""


# fault: serving/explain/logs.py: MAX_STOPPED_LOG, kept) → MAX_STOPPED_LOG, most)
# fault: serving/explain/logs.py: if not until.left(): → if False:
@pytest.mark.promise("P23")
@pytest.mark.parametrize("seconds", [0, 50])
def test_a_stopped_node_names_no_number_of_logs_that_fills_the_memory_or_the_time(seconds: float) -> None:
    """Its order is the host's word: 4,096 replicas, of each a log that drips."""
    clock, rows = Clock(), [SimpleNamespace(index=index) for index in range(100)]

    def read_end(_name: str, _most: int, kept: int) -> bytes:
        clock.sleep(seconds)
        return (b"x" * (ONE_HOST // 4) + b"END")[-kept:]

    runtime = SimpleNamespace(after=lambda length: Deadline.after(length, clock))
    node: Any = SimpleNamespace(
        host="gpu1",
        connection=SimpleNamespace(runtime=runtime),
        order=lambda: SimpleNamespace(deployments=rows),
        read_end=read_end,
    )
    began = clock.monotonic()
    found = _stopped(node, ONE_HOST)
    assert clock.monotonic() - began < STOPPED_SECONDS + 2 * 50
    assert len(found) == (3 if seconds else 101)
    assert all(log.parts[0][1].endswith(b"END") for log in found)
    assert sum(len(log.parts[0][1]) for log in found) < 2 * ONE_HOST
