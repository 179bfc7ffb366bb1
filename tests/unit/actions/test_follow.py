"""`serve -v`: every line that vLLM prints is shown once, however much it prints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from tests.support.canned_docker import answer, canned
from tests.support.clock import Clock
from vllm_cluster.actions.follow import LOG_SECONDS, VllmLog
from vllm_cluster.docker.client import MAX_LOG
from vllm_cluster.docker.log_frames import nanoseconds
from vllm_cluster.events import Event
from vllm_cluster.run.runtime import Runtime

# Docker stamps what comes at once with one time.
AT_ONCE = 3


class Printed:
    """The log of a container, which Docker gives from a time on."""

    def __init__(self) -> None:
        self.rows: list[tuple[bytes, bytes]] = []

    def add(self, text: bytes) -> None:
        number = len(self.rows) // AT_ONCE
        stamp = b"2026-11-22T13:%02d:%02d.%09dZ" % (41 + number // 60, number % 60, number)
        self.rows.append((stamp, text))

    def answers(self, line: str) -> Iterator[bytes]:
        found = re.search(r"since=(\d+)\.?(\d*)", line)
        since = int(found[1]) * 10**9 + int(found[2] or 0) if found else 0
        frames = [stamp + b" " + text + b"\n" for stamp, text in self.rows if nanoseconds(stamp) >= since]
        body = b"".join(b"\1\0\0\0" + len(frame).to_bytes(4, "big") + frame for frame in frames)
        yield answer(body)


# fault: actions/follow.py: self._position.resume() or self._since → self._since
def test_each_line_of_vllm_is_shown_once_however_much_it_prints() -> None:
    printed, clock, events = Printed(), Clock(), list[Event]()
    docker, _ = canned(printed.answers)
    connection = SimpleNamespace(name="gpu1", engine=docker, runtime=Runtime(clock))
    node: Any = SimpleNamespace(connection=connection, name="vcluster-lab")
    log, number = VllmLog(node, events.append), 0
    while sum(len(text) for _, text in printed.rows) < 3 * MAX_LOG:
        for _ in range(10):  # the last time is cut between two looks
            printed.add(b"[vllm] line %d %s" % (number, b"x" * 2000))
            number += 1
        printed.add(b"[ray] of another program")
        log.show()
        log.show()  # no more than one look a second
        clock.sleep(LOG_SECONDS)
    assert [event.text.split(" x")[0] for event in events] == [f"line {index}" for index in range(number)]
    assert {(event.kind, event.host) for event in events} == {("log", "gpu1")}
