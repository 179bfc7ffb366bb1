"""Streams: both directions at once, their ends, and their stalls."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path

import pytest

from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import TimedOut
from vllm_cluster.kernel.transport import base
from vllm_cluster.kernel.transport.base import MAX_STREAMS, Stream, Transport

BLOCK = os.urandom(1 << 20)


def soon() -> Deadline:
    return Deadline.after(20)


def read_all(stream: Stream) -> bytes:
    parts = []
    while data := stream.recv(1 << 16):
        parts.append(data)
    return b"".join(parts)


def test_a_conversation(host: Transport) -> None:
    stream = host.open_stream(["cat"], soon())
    stream.settimeout(10)
    for word in (b"one", b"two", bytes(1000)):
        stream.sendall(word)
        got = b""
        while len(got) < len(word):
            got += stream.recv(5000)
        assert got == word
    stream.shutdown_write()
    assert stream.recv(10) == b""
    stream.close()
    stream.close()


def test_a_half_closed_stream_still_answers(host: Transport) -> None:
    stream = host.open_stream(["sh", "-c", "cat > /dev/null; sleep 0.2; echo late"], soon())
    stream.settimeout(10)
    stream.sendall(b"x")
    stream.shutdown_write()
    assert read_all(stream) == b"late\n"
    stream.close()


@pytest.mark.parametrize("megabytes", [100])
def test_much_goes_both_ways_at_once(host: Transport, megabytes: int) -> None:
    stream = host.open_stream(["cat"], soon())
    stream.settimeout(20)

    def feed() -> None:
        for _ in range(megabytes):
            stream.sendall(BLOCK)
        stream.shutdown_write()

    feeder = threading.Thread(target=feed)
    feeder.start()
    digest, size = hashlib.sha256(), 0
    while data := stream.recv(1 << 18):
        digest.update(data)
        size += len(data)
    feeder.join()
    stream.close()
    assert size == megabytes << 20
    assert digest.digest() == hashlib.sha256(BLOCK * megabytes).digest()


def test_a_flood_of_errors_does_not_stall_the_input(host: Transport) -> None:
    script = "head -c 20000000 /dev/zero >&2; cat > /dev/null; echo last words >&2; echo done"
    stream = host.open_stream(["sh", "-c", script], soon())
    stream.settimeout(20)
    stream.sendall(bytes(8 << 20))
    stream.shutdown_write()
    assert read_all(stream) == b"done\n"
    assert stream.stderr_tail().endswith("last words")
    assert len(stream.stderr_tail()) <= 10_000
    stream.close()


def test_silence_is_a_time_out(host: Transport) -> None:
    stream = host.open_stream(["sleep", "30"], soon())
    stream.settimeout(0.3)
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        stream.recv(1)
    assert 0.25 < time.monotonic() - started < 2
    stream.close()


def test_input_that_is_never_read_is_a_timeout(host: Transport) -> None:
    stream = host.open_stream(["sleep", "30"], soon())
    stream.settimeout(0.5)
    with pytest.raises(TimeoutError):
        stream.sendall(bytes(32 << 20))
    stream.close()


READS_SLOWLY = "import sys, time\nwhile sys.stdin.buffer.raw.read(65536): time.sleep(0.05)"


# fault: kernel/transport/process.py: if rest and not due.left(): → if False:
# fault: kernel/transport/fabric/stream.py: if rest and not due.left(): → if False:
def test_input_that_is_read_too_slowly_is_a_timeout(host: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    """A little now and then does not count as a stall."""
    monkeypatch.setattr(base, "SLOWEST", 1e9)
    stream = host.open_stream(["python3", "-c", READS_SLOWLY], soon())
    stream.settimeout(1.5)
    with pytest.raises(TimeoutError, match="too slowly"):
        stream.sendall(bytes(32 << 20))
    stream.close()


def test_a_command_that_is_gone_takes_no_input(host: Transport) -> None:
    stream = host.open_stream(["sh", "-c", "echo no >&2; exit 3"], soon())
    stream.settimeout(10)
    assert read_all(stream) == b""
    with pytest.raises(BrokenPipeError):
        for _ in range(50):
            stream.sendall(BLOCK)
    assert stream.stderr_tail() == "no"
    stream.close()


def test_a_command_that_does_not_exist_is_reported(host: Transport) -> None:
    stream = host.open_stream(["no-such-command"], soon())
    stream.settimeout(10)
    assert read_all(stream) == b""
    assert "no-such-command" in stream.stderr_tail()
    stream.close()


def test_exit_code_255_of_a_command_differs_from_a_lost_connection(host: Transport) -> None:
    stream = host.open_stream(["sh", "-c", "echo x; exit 255"], soon())
    stream.settimeout(10)
    assert read_all(stream) == b"x\n"
    stream.close()


def test_a_closed_stream_ends_its_command(host: Transport) -> None:
    stream = host.open_stream(["sh", "-c", "echo $$; exec cat"], soon())
    stream.settimeout(10)
    pid = int(stream.recv(100))
    stream.close()
    until = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_streams_beyond_the_limit_wait_and_commands_still_run(host: Transport) -> None:
    if type(host).__name__ == "LocalTransport":
        return  # nothing here limits the commands of this machine
    streams = [host.open_stream(["cat"], soon()) for _ in range(MAX_STREAMS)]
    with pytest.raises(TimedOut):
        host.open_stream(["cat"], Deadline.after(0.2))
    assert host.run(["echo", "x"], soon()).stdout == b"x\n"
    streams[0].close()
    host.open_stream(["cat"], soon()).close()
    for stream in streams:
        stream.close()
