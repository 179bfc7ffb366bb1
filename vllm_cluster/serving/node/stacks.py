"""Writes down the stacks of processes, by the image's py-spy."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence

# For one process; for all together; of one process, in lines.
SECONDS, SECONDS_IN_ALL, LINES = 5.0, 15.0, 200


def write_stacks(pids: Sequence[int], write: Callable[[str], None]) -> None:
    """Write the stacks of processes as lines, as many as the time allows; where that cannot be, why.

    Nothing is stopped for it: a process that hangs on a GPU may not come back from a debugger's stop.
    """
    if shutil.which("py-spy") is None:
        return
    deadline = time.monotonic() + SECONDS_IN_ALL
    for pid in pids:
        left = min(SECONDS, deadline - time.monotonic())
        if left <= 0:
            return
        try:
            argv = ["py-spy", "dump", "--nonblocking", "--pid", str(pid)]
            ran = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=left, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            write(f"stacks of process {pid}: {error}")
            continue
        lines = (ran.stdout or ran.stderr).splitlines()
        for line in lines[:LINES]:
            write(f"stacks of process {pid}: {line}")
