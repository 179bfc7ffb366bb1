"""A channel's bytes, as a process reads them that was stopped meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vllm_cluster.kernel.transport.fabric import stream
from vllm_cluster.kernel.transport.fabric.stream import ChannelStream


# fault: kernel/transport/fabric/stream.py: if left > -LATE_SECONDS: → if left <= 0:
@pytest.mark.promise("P34")
@pytest.mark.parametrize("asleep", [0.0, 20.0])
def test_who_wakes_up_late_waits_for_what_came_meanwhile(monkeypatch: pytest.MonkeyPatch, asleep: float) -> None:
    """The wait is over before paramiko's thread has read it; a wait that ends in time is the end."""
    now, waits = [0.0], list[float | None]()
    buffer = SimpleNamespace(set_event=lambda _: None)
    channel: Any = SimpleNamespace(
        in_buffer=buffer,
        in_stderr_buffer=buffer,
        eof_received=False,
        closed=False,
        recv_stderr_ready=lambda: False,
        recv_ready=lambda: len(waits) > 1,
        recv=lambda _: b"came",
    )
    link: Any = SimpleNamespace(host="gpu1", alive=lambda: True)
    reading = ChannelStream(link, channel, "the lease", lambda: None)

    def wait(seconds: float | None) -> bool:
        waits.append(seconds)
        now[0] += (seconds or 0.0) + asleep
        return False

    monkeypatch.setattr(stream, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(reading, "_arrival", SimpleNamespace(expect=lambda: None, wait=wait))
    reading.settimeout(3)
    if asleep:
        assert reading.recv(100) == b"came"
    else:
        with pytest.raises(TimeoutError, match="no bytes from the lease within 3 s"):
            reading.recv(100)
    assert waits == ([3, stream.AWAKE_SECONDS] if asleep else [3])
