"""Many short commands side by side on one connection, ended from either side: each one works, and so does the next."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import paramiko
import pytest
from paramiko.common import cMSG_CHANNEL_EOF

from tests.support.carriers import Client
from tests.support.depth import cases
from tests.support.sshd import Sshd
from tests.support.waiting import until
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.transport import Kind
from vllm_cluster.kernel.transport.base import Target, Transport
from vllm_cluster.kernel.transport.fabric import FabricTransport

Connect = Callable[[Target, Kind], Transport]
THREADS, ROUNDS = 8, cases(20, 20, 60)
MIB = b"x" * (1 << 20)


def soon() -> Deadline:
    return Deadline.after(30)


def prints(host: Transport) -> None:
    assert len(host.run(["head", "-c", "300000", "/dev/zero"], soon()).stdout) == 300_000


def reads(host: Transport) -> None:
    assert host.run(["wc", "-c"], soon(), stdin=MIB).text.strip() == str(len(MIB))


def leaves_early(host: Transport) -> None:
    stream = host.open_stream(["cat"], soon())
    stream.settimeout(20)
    stream.sendall(MIB[:100_000])
    stream.recv(1)
    stream.close()


def is_left(host: Transport) -> None:
    stream = host.open_stream(["sh", "-c", "echo done; exec >&-"], soon())
    stream.settimeout(20)
    assert stream.recv(5) == b"done\n"
    stream.shutdown_write()
    stream.close()


USES: tuple[Callable[[Transport], None], ...] = (prints, reads, leaves_early, is_left)


@pytest.mark.parametrize("options", [(), ("RekeyLimit 2M",)], ids=["", "with new keys every 2 MB"])
def test_many_sessions_that_end_at_any_moment_break_no_connection(
    tmp_path: Path, client: Client, connect: Connect, kind: Kind, options: tuple[str, ...]
) -> None:
    server = Sshd(tmp_path / "server", client.key, options=options).start()
    client.add("gpu1", server)
    threads = threading.active_count()

    def use(seed: int) -> None:
        choose = random.Random(seed)
        for _ in range(ROUNDS):
            choose.choice(USES)(host)

    try:
        host = connect(client.target("gpu1"), kind)
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(use, range(THREADS)))
        host.close()
        until(lambda: threading.active_count() <= threads + 1)
    finally:
        server.stop()


# fault: kernel/transport/fabric/keepalive.py: return self._closed and kind in _OF_A_CHANNEL → return False
def test_a_late_end_of_a_closed_channel_does_not_reach_the_next_one(
    client: Client, server: Sshd, connect: Connect
) -> None:
    """A thread that was kept from sending it, as by new keys, while the server gave the number to another channel."""
    client.add("gpu1", server)
    host = connect(client.target("gpu1"), "fabric")
    assert isinstance(host, FabricTransport)
    session = host._link().session
    first: Any = session.open_session(timeout=20)
    first.exec_command("true")
    assert first.recv_exit_status() == 0
    until(lambda: first.closed, 20)
    limit = Deadline.after(20)
    late = paramiko.Message()
    late.add_byte(cMSG_CHANNEL_EOF)
    late.add_int(first.remote_chanid)
    # sshd gives the number free when it has read our close and reaped the command, whichever comes last.
    second: Any = None
    while second is None or second.remote_chanid != first.remote_chanid:
        assert limit.left() > 0, "the server gave the number to no other channel"
        if second is not None:
            second.close()
        second = session.open_session(timeout=20)
    second.settimeout(20)
    first.transport._send_user_message(late)
    second.exec_command("cat")
    second.sendall(b"x")
    assert second.recv(1) == b"x"
