"""A channel's bytes, as a process reads them that was stopped meanwhile."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import paramiko
import pytest

from tests.support.clock import Clock
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.transport.base import Target
from vllm_cluster.kernel.transport.fabric import FabricTransport, stream
from vllm_cluster.kernel.transport.fabric.stream import ChannelStream, FabricConnection
from vllm_cluster.kernel.transport.jumps import Jumps
from vllm_cluster.kernel.transport.kept import Kept


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


# fault: kernel/transport/fabric/stream.py: while rest and (left := deadline.left()): → while (left := 9.0) and rest:
@pytest.mark.parametrize("seconds", [5, 500])
def test_a_host_that_takes_a_byte_at_a_time_has_the_time_of_the_command(seconds: int) -> None:
    """With a byte each second `status` took an hour: paramiko's limit is for each piece that a host takes."""
    clock, taken, ended = Clock(), list[bytes](), list[bool]()

    def send(data: bytes) -> int:
        clock.sleep(1)
        taken.append(data[:1])
        return 1

    def sendall(data: bytes) -> None:
        for byte in data:
            send(bytes([byte]))

    channel: Any = SimpleNamespace(
        settimeout=lambda _: None, send=send, sendall=sendall, shutdown_write=lambda: ended.append(True)
    )
    stream._send(channel, b"x" * 100, Deadline.after(seconds, clock))
    assert len(taken) == min(seconds, 100)
    assert ended == ([True] if seconds > 100 else [])


def test_a_command_that_ended_gets_no_more_input() -> None:
    """The channel takes nothing then, as often as it is asked."""
    channel: Any = SimpleNamespace(settimeout=lambda _: None, send=lambda _: 0)
    stream._send(channel, b"x" * 100, Deadline.after(20))


# fault: kernel/transport/fabric/stream.py: if unkept > MAX_UNKEPT: → if False:
# fault: kernel/transport/fabric/stream.py: unkept += out.add(channel.recv(PACKET)) → out.add(channel.recv(PACKET))
@pytest.mark.parametrize("on_error", [True, False])
def test_output_without_end_ends_the_connection(monkeypatch: pytest.MonkeyPatch, on_error: bool) -> None:
    """What is not kept was read until the command had to end: 60 s, of which 45 s of a core."""
    monkeypatch.setattr(stream, "MAX_UNKEPT", 5 << 20)
    monkeypatch.setattr(stream, "_Arrival", lambda _: SimpleNamespace(expect=lambda: None, wait=lambda _: True))
    read, closed, out = list[int](), list[bool](), Kept()

    def recv(size: int) -> bytes:
        read.append(size)
        assert sum(read) < 20 << 20
        return b"z" * size

    ready = itertools.cycle([True, False]).__next__
    channel: Any = SimpleNamespace(
        eof_received=False,
        closed=False,
        settimeout=lambda _: None,
        shutdown_write=lambda: None,
        recv=recv,
        recv_stderr=recv,
        recv_ready=(lambda: False) if on_error else ready,
        recv_stderr_ready=ready if on_error else (lambda: False),
    )
    wire: Any = SimpleNamespace(failure="")
    session: Any = SimpleNamespace(transport=None, client=SimpleNamespace(close=lambda: closed.append(True)))
    link = stream.FabricConnection("gpu1", "u@h:22", session, wire)
    with pytest.raises(paramiko.SSHException):
        link.collect(channel, b"", Deadline.after(20), out, Kept())
    assert wire.failure == "it printed more than 5 MiB"
    assert closed == [True]
    assert len(out.own) == (0 if on_error else 1 << 20)


# fault: kernel/transport/fabric/__init__.py: open_session(WINDOW, timeout → open_session(timeout
# fault: kernel/transport/fabric/__init__.py: WINDOW = 512 << 10 → WINDOW = 2 << 20
def test_little_may_come_before_it_is_read() -> None:
    """64 hosts that each sent 2 MiB at once took 143 MB in `logs`."""
    windows = list[int]()
    session = SimpleNamespace(open_session=lambda window=2 << 20, timeout=None: windows.append(window))
    link: Any = SimpleNamespace(session=session, REFUSED=FabricConnection.REFUSED, BROKEN=FabricConnection.BROKEN)
    FabricTransport(Target("gpu1", "gpu1"), Jumps())._session(link, Deadline.after(5), "the lease")
    assert 64 * sum(windows) <= 32 << 20
