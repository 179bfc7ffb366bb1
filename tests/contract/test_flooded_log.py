"""A host that prints without end on what ssh writes to its standard error."""

from __future__ import annotations

import subprocess
import time

import pytest

from vllm_cluster.kernel.transport import base, process, ssh_log


# fault: kernel/transport/process.py: del self._tail[:-MAX_TAIL] → pass
@pytest.mark.parametrize("first", [0, 65536])
def test_of_standard_error_the_beginning_and_the_end_are_kept(first: int) -> None:
    """As a file it took 540 MB in a minute, and 1 GB of memory to read; the login did not end by its deadline."""
    script = "echo begun >&2; yes padding | head -c 50000000 >&2; echo ended >&2"
    with process.ErrorOutput(first) as errors:
        running = subprocess.Popen(["sh", "-c", script], stderr=errors.sink)
    assert running.wait() == 0
    errors.join(20)
    text = errors.text()
    assert text.startswith("begun") == bool(first)
    assert text.endswith("ended")
    assert len(text) <= first + base.MAX_TAIL


# fault: kernel/transport/ssh_log.py: line[:MAX_LINE].strip() → line.strip()
def test_a_long_line_is_read_at_once() -> None:
    begun = time.monotonic()
    assert ssh_log.words("x" * 60_000) == ["x" * ssh_log.MAX_LINE]
    assert time.monotonic() - begun < 1
