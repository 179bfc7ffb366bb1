"""How many lines a second `logs` takes from Docker's bytes to the terminal's, of two hosts; and with what memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast

import pytest

from vllm_cluster.features.logs.host import ContainerFeed
from vllm_cluster.features.logs.lines import LogRequest
from vllm_cluster.features.logs.merge import LogMerge
from vllm_cluster.features.logs.render import LogWriter
from vllm_cluster.kernel.clock import SYSTEM_CLOCK
from vllm_cluster.kernel.node.handle import NodeHandle

pytestmark = pytest.mark.alone

HOSTS = ("gpu1", "gpu2")
LINES = 100_000
A_SECOND = 50_000
TEXT = b"[vllm] (APIServer pid=437) INFO 11-22 13:57:27 [loggers.py:335] Engine 000: Avg prompt throughput: 0.4 tok/s\n"


def sent() -> bytes:
    """A log of that many lines as Docker frames it, 20,000 lines a second."""
    frames = bytearray()
    for number in range(LINES):
        at = number * 50_000
        content = b"2026-11-22T13:41:%02d.%09dZ " % (at // 10**9, at % 10**9) + TEXT
        frames += b"\x01\0\0\0" + len(content).to_bytes(4, "big") + content
    return bytes(frames)


def node(host: str, data: bytes) -> NodeHandle:
    """A node whose Docker sends these bytes."""

    @contextmanager
    def log(*_: object, **__: object) -> Iterator[Iterator[bytes]]:
        yield (data[at : at + 65_536] for at in range(0, len(data), 65_536))

    docker, runtime = SimpleNamespace(streams=SimpleNamespace(log=log)), SimpleNamespace(clock=SYSTEM_CLOCK)
    connection = SimpleNamespace(docker=docker, runtime=runtime)
    return cast(NodeHandle, SimpleNamespace(name="node", host=host, connection=connection))


@pytest.mark.parametrize("as_json", [False, True])
def test_50_000_lines_a_second_of_processor_time(as_json: bool, capfd: pytest.CaptureFixture[str]) -> None:
    data, merge = sent(), LogMerge(SYSTEM_CLOCK, follow=False)
    feeds = [ContainerFeed(node(host, data), LogRequest(HOSTS), merge, lambda *_: False) for host in HOSTS]
    for feed in feeds:
        merge.add(feed)

    def read(feed: ContainerFeed) -> None:
        feed.read(0, None, lambda: merge.begin(feed))
        merge.end(feed)

    writer, count = LogWriter(HOSTS, as_json=as_json, color="never"), 0
    began = time.process_time()
    for feed in feeds:
        threading.Thread(target=read, args=(feed,)).start()
    while (lines := merge.take(0.1)) is not None:
        writer.write(lines)
        count += len(lines)
        capfd.readouterr()
    taken = time.process_time() - began
    assert count == 2 * LINES
    assert count / taken > A_SECOND, f"{count / taken:.0f} lines a second"
