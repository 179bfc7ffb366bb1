"""A laptop that is suspended while it waits for a host, and wakes up when its wait is over."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from tests.support.carriers import REMOTE, Client
from tests.support.sshd import Sshd

PROGRAM = """
import sys
from pathlib import Path
from vllm_cluster.clock import Deadline
from vllm_cluster.transport import make
from vllm_cluster.transport.base import Target
from vllm_cluster.transport.jumps import Jumps

host = make(Target("gpu1", "gpu1", config=Path(sys.argv[1])), sys.argv[2], Jumps())
host.connect(Deadline.after(20))
stream = host.open_stream(["sh", "-c", "echo began; sleep 1; echo came; sleep 20"], Deadline.after(20))
stream.settimeout(3)
while True:
    print(stream.recv(100).decode().strip(), flush=True)
"""


@pytest.mark.promise("P34")
@pytest.mark.parametrize("kind", REMOTE)
def test_what_came_while_this_process_was_stopped_is_read(server: Sshd, client: Client, kind: str) -> None:
    client.add("gpu1", server)
    argv = [sys.executable, "-c", PROGRAM, str(client.config), kind]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "began\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(5)  # the attack itself: past the end of its wait
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=30)
    assert out == "came\n", err[-500:]
    assert "TimeoutError" in err
