"""The lines of a history, as the head keeps them: a line of another shape is left out."""

from __future__ import annotations

import json
import time
import tracemalloc
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.serve_requests import placed
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import TimedOut
from vllm_cluster.kernel.node.history import (
    known_requests,
    last_change,
    last_ready_request,
    read_history,
)
from vllm_cluster.kernel.node.named_files import ALL_SECONDS, MAX_ALL
from vllm_cluster.wire.history import AuditLine
from vllm_cluster.wire.order import READY, Ready, of_replica
from vllm_cluster.wire.reading import convert

RUN = {"time": 1.0, "user": "ann", "verb": "serve", "operations": ["serve org/model"], "request": 1}
END = {"time": 2.0, "request": 1, "result": "ready", "seconds": 3.5, "summary": ""}


def node(audit: dict[str, Any], result: dict[str, Any] = END) -> Any:
    """A head with a line in each file."""
    files = {"audit.jsonl": json.dumps(audit).encode(), "results.jsonl": json.dumps(result).encode()}
    return head_with(files)


def head_with(files: dict[str, bytes]) -> Any:
    """A head with these files."""
    return SimpleNamespace(host="gpu1", read=lambda name, limit=1 << 30: (files.get(name) or b"")[:limit])


# fault: kernel/node/history.py: node.read(name, MAX_FILE) → node.read(name)
# fault: kernel/node/history.py: .rsplit(b"\n", MAX_LINES)[-MAX_LINES:] → .split(b"\n")
# fault: kernel/node/history.py: kept = sum(number <= MAX_VALUES for number in values) → kept = len(rows)
@pytest.mark.parametrize(
    ("file", "row"),
    [
        ("results.jsonl", b"ab\n"),
        ("results.jsonl", b'{"request":1,"result":"restarted"}\n'),
        ("audit.jsonl", b'{"time":1,"user":"u","verb":"v","operations":[' + b'"ab",' * 150 + b'"ab"]}\n'),
        ("audit.jsonl", b'{"time":1,"user":"u","verb":"v","operations":["' + b"x" * (32 << 20) + b"\n"),
    ],
    ids=["no rows", "short rows", "many values", "a long file"],
)
def test_what_a_head_makes_of_its_history_takes_little_memory(file: str, row: bytes) -> None:
    """Its four files took 165 MB, and a million rows of two bytes 23 s."""
    content = row * max(1, (3 << 20) // len(row))
    head = head_with({file: content, f"{file}.1": content})
    tracemalloc.start()
    try:
        read_history(head)
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()


def test_the_newest_lines_of_a_history_are_kept() -> None:
    rows = b"".join(json.dumps({**RUN, "time": float(number)}).encode() + b"\n" for number in range(10_000))
    found = read_history(head_with({"audit.jsonl": rows, "results.jsonl": b""}))
    assert (len(found), found[-1].time) == (8192, 9999.0)


def test_a_run_has_its_end() -> None:
    [entry] = read_history(node({**RUN, "later": "a key of a later version"}))
    assert (entry.user, entry.operations, entry.result, entry.seconds) == ("ann", ("serve org/model",), "ready", 3.5)
    changed = last_change(node(RUN))
    assert changed and (changed.user, changed.summary, changed.time) == ("ann", "serve org/model", 1.0)


# fault: kernel/node/history.py: yield read(kind, row, sender) → yield kind(**__import__("json").loads(row))
@pytest.mark.parametrize(
    "odd",
    [
        {"user": {"a": 1}},
        {"user": None},
        {"verb": ["serve"]},
        {"operations": "serve"},
        {"operations": [1]},
        {"time": 1e300},
        {"time": "1"},
        {"request": True},
        {"request": -1},
        {"seconds": "3"},
        {"seconds": 1e305},
    ],
    ids=str,
)
def test_a_line_of_another_shape_is_left_out(odd: dict[str, Any]) -> None:
    head = node({**RUN, **odd})
    assert [entry.user for entry in read_history(head)] == [""]
    assert last_change(head) is None


@pytest.mark.parametrize("odd", [{"result": 1}, {"request": "1"}, {"request": True}, {"time": 1e300}, {"summary": {}}])
def test_an_end_of_another_shape_is_left_out(odd: dict[str, Any]) -> None:
    [entry] = read_history(node(RUN, {**END, **odd}))
    assert (entry.user, entry.result, entry.seconds) == ("ann", None, None)


def test_text_of_a_line_steers_no_terminal() -> None:
    [entry] = read_history(node({**RUN, "user": "\x1b[2Jann", "operations": ["\u202eserve"]}))
    assert (entry.user + entry.operations[0]).isprintable()


# fault: wire/history.py: operations: tuple[Line, ...] → operations: tuple[str, ...]
def test_an_operation_of_the_history_is_one_line() -> None:
    line = convert(AuditLine, {"time": 1.0, "user": "me", "verb": "up", "operations": ["gpu2\n  fix: sh x"]}, "gpu1")
    assert line.operations == ("gpu2 fix: sh x",)


def entries_of(*lines: dict[str, Any]) -> list[Any]:
    """The history of a run with these results."""
    text = "\n".join(json.dumps({"request": 1, "name": "m", **line}) for line in lines).encode()
    files = {"audit.jsonl": json.dumps(RUN).encode(), "results.jsonl": text}
    return read_history(head_with(files))


# fault: kernel/node/history.py: which = (line.request, line.replica) → which = (line.request, 0)
def test_a_restart_ends_when_the_same_replica_is_ready_again() -> None:
    _, first, second = entries_of(
        {"time": 2, "result": "restarted", "summary": "lost gpu1"},
        {"time": 3, "result": "restarted", "summary": "out of memory", "replica": 1},
        {"time": 4, "result": "ready again", "seconds": 60},
    )
    assert (first.failure, first.result, first.seconds) == ("replica 0: lost gpu1", "ready", 60.0)
    assert (second.failure, second.result) == ("replica 1: out of memory", None)


def test_a_request_of_several_replicas_is_not_ready_while_one_has_failed() -> None:
    [entry] = entries_of(
        {"time": 2, "result": "ready", "seconds": 50},
        {"time": 3, "result": "failed", "summary": "out of memory", "replica": 1},
    )
    assert (entry.result, entry.failure) == ("failed", "replica 1: out of memory")
    [entry] = entries_of(*({"time": 2, "result": "ready", "seconds": 50 + one, "replica": one} for one in (0, 1)))
    assert (entry.result, entry.seconds, entry.failure) == ("ready", 51.0, None)


# fault: kernel/node/history.py: if end.result == "ready" and len(ends) < number: → if False:
@pytest.mark.parametrize(
    ("replicas", "lines", "result"),
    [
        (2, [("ready", 0)], None),
        (2, [("ready", 1)], None),
        (2, [("ready", 0), ("ready", 1)], "ready"),
        (2, [("ready", 0), ("replaced", 1)], "replaced"),
        (3, [("ready", 0), ("failed", 1)], "failed"),
        (1, [("ready", 0)], "ready"),
    ],
)
def test_a_request_of_several_replicas_is_ready_once_the_last_one_is(
    replicas: int, lines: list[tuple[str, int]], result: str | None
) -> None:
    rows = [{"time": 2, "result": end, "replica": index, "replicas": replicas, "seconds": 5} for end, index in lines]
    [entry] = entries_of(*rows)
    assert (entry.result, entry.seconds) == (result, 5 if result else None)


# fault: kernel/node/history.py: for _, own in sorted(replicas.items())] → for index in sorted(replicas) if (own := [line for line in lines if line.replica == index])]
def test_as_many_replicas_as_a_head_can_claim_take_no_time() -> None:
    ends = [{"request": 1, "result": "ready", "replica": index, "replicas": 10**6} for index in range(15_000)]
    began = time.process_time()
    assert len(entries_of(*ends)) == 1
    assert time.process_time() - began < 1


def named(read: Any, orders: int = 0) -> Any:
    """A head whose order and results name this many replicas, each with a file that is read so."""
    rows = tuple(SimpleNamespace(index=index) for index in range(orders))
    ends = "\n".join(json.dumps({**END, "replica": index, "generation": "g"}) for index in range(1000)).encode()
    clock = Clock()
    return SimpleNamespace(
        host="gpu1",
        name="vcluster-lab",
        connection=SimpleNamespace(runtime=SimpleNamespace(after=partial(Deadline.after, clock=clock))),
        order=lambda: SimpleNamespace(deployments=rows),
        read=lambda name, _most=0, until=None: ends if name.startswith("results") else read(clock, name, until),
    )


# fault: kernel/node/named_files.py: if not self._until.left(): → if False:
def test_a_head_whose_order_names_thousands_of_replicas_is_not_asked_for_all() -> None:
    read = list[str]()

    def slow(clock: Clock, name: str, _until: Any) -> bytes:
        read.append(name)
        clock.sleep(20)
        return b"{}"

    head = named(slow, 4096)
    assert [one.index for one in known_requests(head)] == [*range(4096)]
    assert len(read) == ALL_SECONDS / 20
    read.clear()
    assert last_ready_request(head, ()) is None
    assert len(read) == ALL_SECONDS / 20


# fault: kernel/node/named_files.py: self._node.read(file, limit, self._until) → self._node.read(file, limit)
# fault: kernel/node/named_files.py: except TimedOut as error: → except ZeroDivisionError as error:
def test_the_last_file_of_a_head_has_what_is_left_for_all() -> None:
    """One file alone took 440 s where all had 60."""
    ends = list[float]()

    def slow(clock: Clock, _name: str, until: Deadline | None) -> bytes:
        left = until.left() if until else 480.0
        clock.sleep(min(50, left))
        ends.append(clock.now)
        if left < 50:
            raise TimedOut("gpu1", "no answer")
        return b"{}"

    assert last_ready_request(named(slow), ()) is None
    assert ends == [50, ALL_SECONDS]


def ready_file(index: int, words: int) -> bytes:
    """What was ready of a replica, with so many flags that differ."""
    request = placed({"gpu1": 2}, 2, 1)
    large = replace(request.deployment, flags=tuple(f"--{word:x}" for word in range(words)))
    named = replace(request, generation=f"g{index}", index=index, deployment=large)
    return json.dumps(Ready((named,)).document).encode()


# fault: kernel/node/named_files.py: if self._left < 0: → if False:
def test_the_files_of_all_replicas_of_a_head_have_one_limit() -> None:
    read = list[str]()

    def large(_clock: Clock, name: str, _until: Any) -> bytes:
        read.append(name)
        return bytes(3 << 20)

    assert last_ready_request(named(large), ()) is None
    assert len(read) == MAX_ALL // (3 << 20) + 1


# fault: kernel/node/history.py: for index, ready in _ready_of(node, of_one): → for index, ready in list(_ready_of(node, of_one)):
def test_of_what_a_head_keeps_of_its_replicas_one_file_is_held_at_once() -> None:
    """320 files of 3 MiB took 5.5 GB."""
    content = ready_file(0, 10_000)
    peaks = list[int]()
    for several in (2, 12):
        left = iter([content] * several)
        head = named(lambda _clock, _name, _until, left=left: next(left, b""))
        tracemalloc.start()
        try:
            assert last_ready_request(head, ()) is None
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


# fault: kernel/node/history.py: if one and at < last: → if one:
def test_the_newest_request_that_is_kept_is_the_last_one() -> None:
    lines = [{**END, "request": at + 1, "replica": at % 3, "generation": f"g{at % 3}"} for at in range(5)]
    files = {"results.jsonl": "\n".join(map(json.dumps, lines)).encode()}
    files |= {of_replica(READY, index): ready_file(index, 1) for index in (0, 2)}
    head = named(lambda _clock, name, _until: files.get(name))
    head.read = lambda name, _most=0, _until=None: files.get(name)
    found = last_ready_request(head, ())
    assert found and (found[0], found[1].generation) == (4, "g0")
    found = last_ready_request(head, {"g0"})
    assert found and (found[0], found[1].generation) == (3, "g2")
