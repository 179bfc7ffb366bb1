"""What a host can make up in its log takes no memory that grows: ranks, replicas, files, times, long lines."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.bounds import within
from tests.support.waiting import until
from vllm_cluster.features.logs.host import FileFeed, _row, _rows
from vllm_cluster.features.logs.lines import Line, LogRequest
from vllm_cluster.features.logs.merge import MAX_WAITING, LogMerge
from vllm_cluster.features.logs.rank_names import RankNames
from vllm_cluster.features.logs.render import LogWriter
from vllm_cluster.kernel.clock import SYSTEM_CLOCK
from vllm_cluster.kernel.docker.log_frames import MAX_FRAME, LogFrames, OutputFrames, Position
from vllm_cluster.kernel.errors import HostError

JOINS = b"INFO 11-26 10:00:02 [x.py:1] world_size=4 rank=3 local_rank=1 distributed_init_method=tcp://10.0.0.1 x"


# fault: features/logs/render.py: if max(len(self._ends), len(self._prefixes)) > MAX_ORIGINS: → if False:
@pytest.mark.parametrize("as_json", [False, True])
def test_the_beginnings_of_lines_are_not_kept_for_each_rank_that_a_log_names(as_json: bool) -> None:
    writer = LogWriter(["gpu1"], as_json=as_json, color="never")
    with contextlib.redirect_stdout(io.StringIO()) as shown, within(60, megabytes=10):
        for rank in range(40_000):
            writer.write([Line(1, "gpu1", "vllm", "x", rank)])
            shown.seek(0)


# fault: features/logs/rank_names.py: self._ranks[replica, kind, pid] = number → self._ranks[kind, pid] = number
def test_processes_of_all_replicas_are_remembered_together() -> None:
    names = RankNames()
    with within(60, megabytes=5):
        for number in range(30_000):
            assert names.rank(b"(Worker pid=%d) " % number + JOINS, number % 300) == 3
    assert names.rank(b"(Worker pid=29999) x", 299) == 3
    assert names.rank(b"(Worker pid=29999) x", 298) is None


# fault: features/logs/host.py: PORTION = 16 << 10 → PORTION = 1 << 20
def test_rows_of_one_frame_are_taken_in_portions() -> None:
    row = b'[0,1,1,""]\n'
    pieces = [framed(row * (MAX_FRAME // len(row)))] * 3
    sizes = [sum(1 for _ in rows) for rows in _rows(OutputFrames(), iter(pieces))]
    assert sum(sizes) == 3 * (MAX_FRAME // len(row)) and max(sizes) <= (16 << 10) // len(row)


def framed(content: bytes) -> bytes:
    """It as Docker sends the standard output of a command."""
    return b"\1\0\0\0" + len(content).to_bytes(4, "big") + content


# fault: kernel/docker/log_frames.py: MAX_FRAME = 128 << 10 → MAX_FRAME = 1 << 20
# fault: kernel/docker/log_frames.py: or data[at] >= OUTPUTS → or False
@pytest.mark.parametrize("head", [bytes([4, 0, 0, 0, 0, 0, 0, 1]), bytes([1, 0, 0, 0, 0, 3, 0, 0])])
def test_frames_that_docker_never_sends_are_refused(head: bytes) -> None:
    """Of 256 outputs an open line each took 17 MB, of each host; a frame is kept until it is whole."""
    for frames in (OutputFrames().feed, LogFrames().feed):
        with pytest.raises(ValueError, match="a frame of"):
            frames(head + b"x")


# fault: features/logs/host.py: MAX_TEXT = 66_000 → MAX_TEXT = 1 << 20
def test_of_a_row_as_much_is_kept_as_a_line_may_have() -> None:
    """Of eight hosts rows of 1 MB with an emoji in each took 166 MB."""
    row = json.dumps([0, 1, 1, "\N{GRINNING FACE}" + "x" * 300_000]).encode() + b"\n"
    [[read]] = _rows(OutputFrames(), (framed(row[at : at + 99_999]) for at in range(0, len(row), 99_999)))
    assert len(cast(Any, _row(read)).line[3]) == 66_000


# fault: features/logs/host.py: "[!-~]{1,255}" → "[!-~]{1,4000}"
# fault: features/logs/host.py: "[!-~]{1,255}" → ".{1,255}"
@pytest.mark.parametrize("name", ["x" * 256, "session_1/\N{GRINNING FACE}", "", "a b"])
def test_a_name_that_no_file_of_ray_has_is_an_error_of_the_host(name: str) -> None:
    @contextmanager
    def run(*_: object, **__: object) -> Iterator[Any]:
        row = json.dumps({"file": 0, "name": name, "rank": None}).encode() + b"\n"
        yield SimpleNamespace(output=lambda: iter([framed(row)]), code=lambda: 0)

    node = SimpleNamespace(host="gpu1", name="n", connection=SimpleNamespace(docker=SimpleNamespace()))
    node.connection.docker.streams = SimpleNamespace(exec=run)
    feed = FileFeed(
        cast(Any, node), LogRequest(("gpu1",), vllm=True), LogMerge(SYSTEM_CLOCK, follow=False), group=False
    )
    with pytest.raises(HostError, match="name is not the name of a file of Ray's"):
        feed.read(0, None, lambda: None)


# fault: features/logs/merge.py: return sys.getsizeof(line.text) + LINE_SIZE → return len(line.text) + LINE_SIZE
def test_what_waits_is_counted_in_bytes() -> None:
    merge = LogMerge(SYSTEM_CLOCK, follow=False)
    merge.add(1)
    text = "\N{GRINNING FACE}" + "x" * (1 << 20)
    merge.put(1, [Line(0, "gpu1", "node", text)])
    assert merge._queues[1].size > 4 << 20


# fault: features/logs/merge.py: (self._taken or queue.size) > 0 and self._waiting → self._taken > 0 and self._waiting
# fault: features/logs/merge.py: self._taken += size - queue.size → pass
def test_what_waits_of_all_logs_is_bounded_together() -> None:
    """Of 64 hosts, each with a share of its own, it took 160 MB; what is being shown counts too."""
    merge = LogMerge(SYSTEM_CLOCK, follow=False)
    for log in ("long", "short", "none"):
        merge.add(log)

    def put(log: str, size: int) -> None:
        with contextlib.suppress(EOFError):
            merge.put(log, [Line(0, "gpu1", "node", "x" * size)])

    threads = [threading.Thread(target=put, args=(log, size)) for log, size in (("long", MAX_WAITING), ("short", 1000))]
    for thread in threads:
        thread.start()
    try:
        until(lambda: merge._queues["long"].size > 0 and merge._queues["short"].size > 0)
        # A log of which nothing is there is waited for: it may come.
        assert merge._is_full(merge._queues["short"]) and not merge._is_full(merge._queues["none"])
        merge.end("none")
        assert len(merge.take(1) or ()) == 2
        assert all(map(merge._is_full, merge._queues.values()))
        merge.take(0)
        assert not any(map(merge._is_full, merge._queues.values()))
    finally:
        merge.close()
        for thread in threads:
            thread.join()


# fault: features/logs/render.py: size += len(line.text) + BESIDE → size += len(line.text)
def test_a_hundred_thousand_empty_lines_are_not_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, sizes = LogWriter(["gpu1"], as_json=False, color="never"), list[int]()
    monkeypatch.setattr(writer, "_write", lambda lines: sizes.append(len(lines)))
    writer.write([Line(1, "gpu1", "vllm", "")] * 100_000)
    assert sum(sizes) == 100_000 and max(sizes) < 5000


# fault: features/logs/render.py: if size > PORTION or end == len(lines): → if end == len(lines):
def test_lines_that_waited_are_not_put_together_as_one_text() -> None:
    """32 MB of control characters took 850 MB."""
    writer = LogWriter(["gpu1"], as_json=False, color="never")
    lines = [Line(1, "gpu1", "vllm", "\N{GRINNING FACE}" + "\1" * 65_000)] * 15
    sink = SimpleNamespace(write=len, flush=lambda: None, isatty=lambda: False)
    with contextlib.redirect_stdout(cast(Any, sink)), within(60, megabytes=20):
        writer.write(lines)


# fault: kernel/docker/log_frames.py: KEPT = 1 << 12 → KEPT = 1 << 20
def test_times_that_go_back_are_not_all_remembered() -> None:
    position = Position()
    with within(60, megabytes=2):
        for minute in range(40):
            late = 59 - minute % 59
            position.fresh([(b"2026-11-22T13:%02d:26.%09dZ" % (late, number), b"") for number in range(1000)])
    assert position.resume() is not None
