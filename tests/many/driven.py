"""The program run as a user runs it, and measured meanwhile."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.many.cluster import Cluster

LONGEST_RUN = 250


@dataclass(frozen=True)
class Run:
    """One run of the program, and what it took; `cpu` holds that of the commands it started too."""

    code: int
    out: str
    err: str
    seconds: float
    cpu: float
    rss_mb: float
    threads: int
    files: int

    @property
    def figure(self) -> str:
        """The measurements in one line."""
        took = f"{self.seconds:.1f} s, {self.cpu:.1f} s CPU, {self.rss_mb:.0f} MB"
        return f"{took}, {self.threads} threads, {self.files} files"


def drive(cluster: Cluster, *words: str, prefix: Sequence[str] = (), terminal: bool = False) -> Run:
    """Run the program to its end; on a terminal, all that it writes is in `out`."""
    argv = [*prefix, sys.executable, "-m", "vllm_cluster", *words, "-i", str(cluster.inventory)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cluster.folder / "cache"), "COLUMNS": "200", "TERM": "xterm"}
    environment.pop("SSH_AUTH_SOCK", None)
    out, err = cluster.folder / "out", cluster.folder / "err"
    started, before = time.monotonic(), os.times()
    with out.open("wb") as to_out, err.open("wb") as to_err, contextlib.ExitStack() as stack:
        outputs = [to_out.fileno(), to_err.fileno()]
        if terminal:
            outputs = [stack.enter_context(_terminal(to_out.fileno()))] * 2
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=outputs[0], stderr=outputs[1], env=environment
        )
        peak = {"VmHWM": 0, "Threads": 0, "files": 0}
        try:
            while process.poll() is None:
                assert time.monotonic() - started < LONGEST_RUN
                _look(process.pid, peak)
                time.sleep(0.05)
        finally:
            process.kill()
            process.wait()
    seconds, after = time.monotonic() - started, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    said, complained = (file.read_text(errors="surrogateescape") for file in (out, err))
    return Run(process.returncode, said, complained, seconds, cpu, peak["VmHWM"] / 1024, peak["Threads"], peak["files"])


@contextlib.contextmanager
def _terminal(sink: int) -> Iterator[int]:
    """A terminal for the program; what is written there goes to the sink."""
    near, far = pty.openpty()

    def copy() -> None:
        with contextlib.suppress(OSError):  # how Linux reports that no program has the terminal open any more
            while data := os.read(near, 65_536):
                os.write(sink, data)

    copier = threading.Thread(target=copy)
    copier.start()
    try:
        yield far
    finally:
        os.close(far)
        copier.join()
        os.close(near)


def _look(pid: int, peak: dict[str, int]) -> None:
    """Raise each peak to what it is now; a process that has just ended has none."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        now = {key: int(value) for key, value in re.findall(r"^(VmHWM|Threads):\s+(\d+)", status, re.MULTILINE)}
        now["files"] = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        peak.update({key: max(peak[key], value) for key, value in now.items()})
