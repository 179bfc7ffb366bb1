"""What /proc shows of processes."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterable
from pathlib import Path

_THREADS = 17  # of /proc/PID/stat behind the name: proc(5), num_threads
# As vLLM calls its processes.
_TITLE = re.compile(r"VLLM::(\w{1,40})")
_COMPILERS = {"ninja", "nvcc", "cicc", "ptxas", "fatbinary", "nvlink", "cc1plus", "cc1", "clang", "hipcc", "lld", "ld"}


def read_proc(pid: int, name: str) -> str:
    """A file of a process; empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""


def processes() -> dict[int, tuple[int, int]]:
    """Parent and session of every process that has not ended."""
    rows = {int(one.name): _fields(int(one.name)) for one in Path("/proc").iterdir() if one.name.isdigit()}
    # A process is a zombie from the end of its first thread on; while others are left, so are ports and GPUs.
    return {
        pid: (int(row[1]), int(row[3]))
        for pid, row in rows.items()
        if row and (row[0] != "Z" or int(row[_THREADS]) > 1)
    }


class StoppedProcesses:
    """The processes of vLLM that a signal has stopped, and not a debugger: the others wait for them without end."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._since: dict[int, float] = {}

    def look(self, pids: Iterable[int]) -> str:
        """Look once; which of them have been so for too long, or nothing."""
        now = time.monotonic()
        self._since = {pid: self._since.get(pid, now) for pid in pids if _fields(pid)[:1] == ["T"]}
        long = ", ".join(_named(pid) for pid, since in self._since.items() if now - since > self._longest)
        return long and f"process {long} of vLLM has been stopped by a signal for {self._longest:g} s"


def _named(pid: int) -> str:
    """A process with vLLM's name of its rank, where it has one."""
    rank = _TITLE.match(read_proc(pid, "cmdline"))
    return f"{pid} ({rank[1]})" if rank else str(pid)


def compiler_runs(pids: Iterable[int]) -> bool:
    """Whether one of some processes compiles code for a GPU or a processor."""
    return any(read_proc(pid, "comm").strip() in _COMPILERS for pid in pids)


def is_here(address: str) -> bool:
    """Whether an address is one of this machine."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # nothing is sent
        except OSError:  # no way leads there
            return False
        return str(probe.getsockname()[0]) == address


def _fields(pid: int) -> list[str]:
    return read_proc(pid, "stat").rpartition(")")[2].split()
