"""This machine as a host: what runs there ends with its connection."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.waiting import until
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.transport.base import Target
from vllm_cluster.kernel.transport.local import LocalTransport


# fault: kernel/transport/local.py: for one in list(self._running): → for one in ():
def test_a_command_that_runs_ends_with_its_connection(tmp_path: Path) -> None:
    """Ctrl-C closes it, and then waits for who reads: a driver that hangs held it for up to a minute."""
    host, begun = LocalTransport(Target("gpu1", "local")), tmp_path / "begun"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(host.run, ["sh", "-c", f"touch {begun}; sleep 20; echo ended"], Deadline.after(60))
        until(begun.exists, every=0.02)
        host.close()
        ended = running.result()
    assert ended.stdout == b""
    assert ended.returncode != 0
