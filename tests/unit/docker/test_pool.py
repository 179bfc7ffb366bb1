"""Connections to Docker beside other streams to the host, of which there are few."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from tests.support.canned_docker import CannedHost, CannedStream, answer
from tests.support.waiting import until
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import TimedOut
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.transport.base import MAX_STREAMS, Stream, Transport


class FewStreams(CannedHost):
    """A host with as few streams as a real one."""

    def __init__(self, together: int) -> None:
        super().__init__(self._answer)
        self.free = threading.BoundedSemaphore(MAX_STREAMS)
        self.waits = False
        # So many calls are open before the first is answered.
        self.open = threading.Barrier(together)

    def _answer(self, _line: str) -> Iterator[bytes]:
        self.open.wait(20)
        yield answer(b"[]")

    def open_stream(self, argv: Sequence[str], deadline: Deadline) -> Stream:
        if not self.free.acquire(blocking=False):
            self.waits = True
            if not self.free.acquire(timeout=deadline.left()):
                raise TimedOut(self.host, "too many commands", again=())
        stream = cast(CannedStream, super().open_stream(argv, deadline))
        close = stream.close

        def closed() -> None:
            if not stream.closed:
                close()
                self.free.release()

        stream.close = closed  # type: ignore[method-assign]
        return stream


def connected(host: FewStreams) -> HostConnection:
    """A connection to it, with its Docker."""
    connection = HostConnection("gpu1", cast(Transport, host))
    connection.open_docker("1.41")
    return connection


# fault: kernel/hosts/connection.py: with self._docker_api.without_idle() if self._docker_api else nullcontext(): → with nullcontext():
def test_what_is_idle_makes_place_for_another_stream() -> None:
    """The host that had the image built its node image first, and could not send it: no stream was free."""
    host = FewStreams(MAX_STREAMS)
    connection = connected(host)
    with ThreadPoolExecutor(MAX_STREAMS) as pool:
        for _ in pool.map(lambda _: connection.docker.containers(None), range(MAX_STREAMS)):
            pass
    assert len(host.streams) == MAX_STREAMS
    connection.open_stream(["cat"], Deadline.after(5)).close()
    assert not host.waits


# fault: kernel/docker/connection.py: and not self._openings and → and
def test_what_ends_while_another_stream_waits_makes_place_for_it() -> None:
    """A build takes minutes, and the image is to be sent behind it."""
    host = FewStreams(MAX_STREAMS + 1)
    connection = connected(host)
    with ThreadPoolExecutor(MAX_STREAMS + 1) as pool:
        calls = [pool.submit(connection.docker.containers, None) for _ in range(MAX_STREAMS)]
        until(lambda: host.open.n_waiting == MAX_STREAMS, seconds=20)
        opened = pool.submit(connection.open_stream, ["cat"], Deadline.after(20))
        until(lambda: host.waits, seconds=20)
        host.open.wait(20)
        opened.result(20).close()
        for call in calls:
            assert call.result(20) == ()
    # And then they are kept again.
    host.open = threading.Barrier(1)
    before = len(host.streams)
    connection.docker.containers(None)
    connection.docker.containers(None)
    assert len(host.streams) <= before + 1
