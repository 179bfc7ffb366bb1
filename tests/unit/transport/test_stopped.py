"""A process that is stopped while it sends, as by Ctrl-Z: the other side was not silent meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_cluster.kernel.clock import SYSTEM_CLOCK
from vllm_cluster.kernel.transport.fabric.keepalive import PACKET_SECONDS, KeepaliveSocket
from vllm_cluster.kernel.transport.fabric.stream import ChannelStream
from vllm_cluster.kernel.transport.process import ProcessStream

LIMIT = 30.0


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of this machine."""
    at = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: at[0])
    monkeypatch.setattr(SYSTEM_CLOCK, "_read", lambda _: at[0])
    return at


def to_channel(send: Callable[[bytes], int]) -> Callable[[bytes], None]:
    """Sends through a channel of paramiko's."""
    buffer = SimpleNamespace(set_event=lambda _: None)
    channel: Any = SimpleNamespace(
        in_buffer=buffer, in_stderr_buffer=buffer, settimeout=lambda _: None, send=send, recv_stderr_ready=lambda: False
    )
    stream = ChannelStream(SimpleNamespace(host="gpu1"), channel, "docker load", lambda: None)  # type: ignore[arg-type]
    stream.settimeout(LIMIT)
    return stream.sendall


def to_process(send: Callable[[bytes], int]) -> Callable[[bytes], None]:
    """Sends to a process of ssh."""
    stream = ProcessStream.__new__(ProcessStream)
    stream._sock = SimpleNamespace(send=send, gettimeout=lambda: LIMIT)  # type: ignore[assignment]
    return stream.sendall


# fault: kernel/clock.py: SYSTEM_CLOCK.monotonic() - since > wait + LATE_SECONDS → False
# fault: kernel/transport/fabric/stream.py: progress, due = time.monotonic(), time_to_send(limit, len(rest)) → pass
# fault: kernel/transport/fabric/stream.py: due = time_to_send(limit, len(rest)) → pass
# fault: kernel/transport/process.py: if was_stopped(began, stall): → if False:
# fault: kernel/transport/process.py: if not was_stopped(began, stall): → if True:
@pytest.mark.parametrize("carrier", [to_channel, to_process])
@pytest.mark.parametrize("takes", [0, 1])
@pytest.mark.parametrize("stopped", [True, False])
def test_sending_continues_after_a_stop(
    carrier: Callable[[Callable[[bytes], int]], Callable[[bytes], None]], now: list[float], takes: int, stopped: bool
) -> None:
    """An `image push` of a minute's Ctrl-Z ended with a time-out at the moment of `fg`."""
    sent = [0]

    def send(data: bytes) -> int:
        if sent[0] > 1:
            return len(data)
        sent[0] += takes
        now[0] += 200.0 if stopped else 0.25 if takes or carrier is to_channel else LIMIT
        if not takes:
            sent[0] += stopped
            raise TimeoutError
        return takes

    if stopped or takes:
        carrier(send)(b"x" * 100)
    else:
        with pytest.raises(TimeoutError):
            carrier(send)(b"x" * 100)


# fault: kernel/transport/fabric/keepalive.py: self._doubt, self._sending = self._doubt and now, self._sending and now → pass
@pytest.mark.parametrize("stopped", [True, False])
def test_a_connection_outlives_a_stop_within_a_packet(now: list[float], stopped: bool) -> None:
    sends = [0]

    def send(data: bytes) -> int:
        sends[0] += 1
        if sends[0] > 2:
            return len(data)
        if sends[0] == 1:
            return 1
        now[0] += 0.1 if not stopped else PACKET_SECONDS + 60
        raise TimeoutError

    socket = KeepaliveSocket(SimpleNamespace(send=send))
    assert socket.send(b"ab") == 1
    now[0] += 0.0 if stopped else PACKET_SECONDS + 1
    with pytest.raises(TimeoutError if stopped else ConnectionAbortedError):
        socket.send(b"b")
    if stopped:
        assert socket.send(b"b") == 1
