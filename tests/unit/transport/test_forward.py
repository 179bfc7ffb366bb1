"""A forwarded port in a process that has no file descriptor left."""

from __future__ import annotations

import errno
import socket
import time

import pytest

from vllm_cluster.kernel.transport import forward
from vllm_cluster.kernel.transport.forward import PAUSE_MS, LoopbackForward, SocketPipe

REFUSED = 5


class Full(socket.socket):
    """A listener for whose first connections there is no file descriptor."""

    times: list[float]

    def accept(self) -> tuple[socket.socket, object]:
        self.times.append(time.monotonic())
        if len(self.times) <= REFUSED:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


# fault: kernel/transport/forward.py: closing.poll(PAUSE_MS) →
def test_a_process_without_a_free_file_descriptor_tries_a_few_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Full()
    full.times = []
    full.bind(("127.0.0.1", 0))
    full.listen()
    monkeypatch.setattr(forward, "listener", lambda _port: full)
    near, far = socket.socketpair()
    made = LoopbackForward("gpu1", lambda: SocketPipe(near))
    try:
        with socket.create_connection(("127.0.0.1", made.local_port), 10) as client:
            client.sendall(b"question")
            far.settimeout(30)
            assert far.recv(100) == b"question"
    finally:
        made.close()
        far.close()
    assert full.times[REFUSED] - full.times[0] >= REFUSED * PAUSE_MS / 1000 * 0.9
