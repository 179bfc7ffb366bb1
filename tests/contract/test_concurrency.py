"""One connection in many hands."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

from tests.support.waiting import until
from vllm_cluster.clock import Deadline
from vllm_cluster.transport.base import Transport

THREADS = 12


def test_twelve_threads_share_a_connection(host: Transport) -> None:
    def work(number: int) -> None:
        data = os.urandom(50_000)
        for turn in range(3):
            result = host.run(["sh", "-c", "cat; exit $1", "x", str(number)], Deadline.after(60), stdin=data)
            assert (result.returncode, result.stdout) == (number, data)
            stream = host.open_stream(["cat"], Deadline.after(60))
            stream.settimeout(30)
            stream.sendall(b"%d" % turn)
            assert stream.recv(10) == b"%d" % turn
            stream.close()

    before, threads = host.round_trips, threading.active_count()
    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(work, number) for number in range(THREADS)]:
            done.result()
    assert host.round_trips >= before + THREADS * 6
    until(lambda: threading.active_count() <= threads + 1)
