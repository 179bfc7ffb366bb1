"""A process of a node is there until it holds nothing more."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support.waiting import until
from vllm_cluster.serving.node.process import Child

# Its first thread ends alone, as the kernel ends the threads of a process that is killed: one after the other.
FIRST_THREAD_ENDS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(300,)).start()
ctypes.CDLL(None).syscall({exit}, 0)
"""
SYS_EXIT = {"x86_64": 60, "aarch64": 93}


def test_a_process_is_alive_while_one_of_its_threads_is() -> None:
    """Its port and its GPUs are not free before: the next model would fail, as another program has them."""
    script = FIRST_THREAD_ENDS.format(exit=SYS_EXIT[os.uname().machine])
    child = Child("half", [sys.executable, "-c", script], dict(os.environ), lambda _: None)
    assert child.pid
    stat = Path(f"/proc/{child.pid}/stat")
    try:
        until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
        assert child.alive() == [child.pid]
    finally:
        os.kill(child.pid, 9)
    until(lambda: child.code() == 128 + 9 and not child.alive())
