"""Hosts that stop, connections that break: every call ends, with whether it may have happened."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.carriers import REMOTE, Client
from tests.support.sshd import Sshd, signal_pid
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import ConnectionLost, TimedOut, Unreachable, VclusterError
from vllm_cluster.kernel.transport import Kind
from vllm_cluster.kernel.transport.base import Target, Transport

Connect = Callable[[Target, Kind], Transport]
# 5 s until a silent host is asked, 15 s for its answer, 1 s to notice.
SILENCE = 21


def outcome(call: Callable[[], object]) -> tuple[VclusterError | None, float]:
    started = time.monotonic()
    try:
        call()
    except VclusterError as error:
        return error, time.monotonic() - started
    return None, time.monotonic() - started


@contextmanager
def cut_off(server: Sshd) -> Iterator[None]:
    """Nothing arrives from or at a server; who may not change the firewall stops its processes instead."""
    if os.getuid() == 0 and shutil.which("iptables"):
        with dropped(server.port):
            yield
        return
    for pid in server.connections():
        signal_pid(pid, signal.SIGSTOP)
    yield


@contextmanager
def dropped(port: int) -> Iterator[None]:
    """No packet from or to a port arrives."""
    rules = [["INPUT", "-i", "lo", "-p", "tcp", way, str(port), "-j", "DROP"] for way in ("--dport", "--sport")]
    done: list[list[str]] = []
    try:
        for rule in rules:
            subprocess.run(["iptables", "-w", "-I", *rule], check=True)
            done.append(rule)
        yield
    finally:
        for rule in done:
            subprocess.run(["iptables", "-w", "-D", *rule], check=True)


def wait_for(file: Path) -> None:
    until = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_killed_connection_is_lost_not_failed(
    kind: Kind, client: Client, server: Sshd, connect: Connect, tmp_path: Path
) -> None:
    client.add("h", server)
    host, mark = connect(client.target("h"), kind), tmp_path / "mark"
    stream = host.open_stream(["cat"], Deadline.after(10))

    def kill() -> None:
        wait_for(mark)
        server.drop_connections()

    killer = threading.Thread(target=kill)
    killer.start()
    error, seconds = outcome(lambda: host.run(["sh", "-c", f"touch {mark}; sleep 30"], Deadline.after(20)))
    killer.join()
    assert isinstance(error, ConnectionLost), error
    assert seconds < 5
    assert "may have completed" in (error.hint or "")
    with pytest.raises(ConnectionLost):
        stream.recv(1)
    stream.close()
    error, _ = outcome(lambda: host.run(["true"], Deadline.after(5)))
    assert isinstance(error, Unreachable), "nothing was sent, and the error must say so"


def test_a_stopped_sshd_delays_no_call_beyond_its_deadline(
    kind: Kind, client: Client, server: Sshd, connect: Connect, tmp_path: Path
) -> None:
    client.add("h", server)
    host, mark = connect(client.target("h"), kind), tmp_path / "mark"

    def stop() -> None:
        wait_for(mark)
        for pid in server.connections():
            signal_pid(pid, signal.SIGSTOP)

    stopper = threading.Thread(target=stop)
    stopper.start()
    error, seconds = outcome(lambda: host.run(["sh", "-c", f"touch {mark}; sleep 30"], Deadline.after(2)))
    stopper.join()
    assert isinstance(error, TimedOut), error
    assert seconds < 4
    for data in (b"", os.urandom(8 << 20)):
        error, seconds = outcome(lambda data=data: host.run(["cat"], Deadline.after(1), stdin=data))  # type: ignore[misc]
        assert isinstance(error, TimedOut | ConnectionLost), error
        assert seconds < 4
    started = time.monotonic()
    host.close()
    assert time.monotonic() - started < 4


class Silence:
    """What becomes of calls while some hosts are dead and others only quiet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outcomes: dict[str, VclusterError | None] = {}
        self.ends: list[bytes] = []

    def call(self, name: str, transport: Transport) -> None:
        """A command that would run for long."""
        command = ["sh", "-c", f"touch '{self.folder}/{name}'; sleep 60"]
        self.outcomes[name] = outcome(lambda: transport.run(command, Deadline.after(60)))[0]

    def listen(self, name: str, transport: Transport) -> None:
        """A stream on which nothing comes."""
        stream = transport.open_stream(["cat"], Deadline.after(60))
        (self.folder / f"{name}, stream").touch()
        self.outcomes[f"{name}, stream"] = outcome(lambda: stream.recv(1))[0]
        stream.close()

    def send_only(self, transport: Transport) -> None:
        """A heartbeat to a command that never answers it."""
        stream = transport.open_stream(["sh", "-c", "cat > /dev/null; echo end"], Deadline.after(10))
        until = time.monotonic() + SILENCE + 2
        while time.monotonic() < until:
            stream.sendall(b"beat\n")
            time.sleep(1)
        stream.shutdown_write()
        self.ends.append(stream.recv(10))
        stream.close()


def started(target: Callable[..., None], *args: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=args)
    thread.start()
    return thread


@pytest.fixture
def near(tmp_path: Path, user_key: Path) -> Iterator[Sshd]:
    """A jump host."""
    server = Sshd(tmp_path / "near", user_key).start()
    yield server
    server.stop()


# It measures waits of seconds, which vLLM's starts beside it on two cores stretch.
@pytest.mark.alone
@pytest.mark.quiet
def test_silence_of_a_host_differs_from_silence_of_a_command(
    *, client: Client, server: Sshd, near: Sshd, shared_server: Sshd, connect: Connect, tmp_path: Path
) -> None:
    """One wait for all of it: a dead host is lost in time, and one whose commands only listen is not."""
    for alias, place in (("alive", shared_server), ("h", server), ("near", near)):
        client.add(alias, place)
    client.hosts += ["Host far", "HostName 127.0.0.1", f"Port {server.port}", "ProxyJump near"]
    client.write()
    ways: tuple[tuple[str, str, Kind], ...] = (
        ("fabric", "h", "fabric"), ("openssh", "h", "openssh"), ("behind a jump host", "far", "fabric")
    )  # fmt: skip
    dead = {name: connect(client.target(alias), kind) for name, alias, kind in ways}
    quiet = [connect(client.target("alive"), kind) for kind in REMOTE]
    seen = Silence(tmp_path / "server-marks")
    seen.folder.mkdir()
    waiting = [started(job, *item) for item in dead.items() for job in (seen.call, seen.listen)]
    sending = [started(seen.send_only, transport) for transport in quiet]
    # A stream still being opened would be a call that fails, not a stream that is lost.
    for name in dead:
        wait_for(seen.folder / name)
        wait_for(seen.folder / f"{name}, stream")
    with cut_off(server):
        cut = time.monotonic()
        error, seconds = outcome(lambda: dead["fabric"].run(["true"], Deadline.after(2)))
        assert isinstance(error, TimedOut)
        assert seconds < 4
        for thread in waiting:
            thread.join(40)
        assert time.monotonic() - cut < SILENCE + 1
    for thread in sending:
        thread.join(40)
    assert {type(lost) for lost in seen.outcomes.values()} == {ConnectionLost}, seen.outcomes
    assert len(seen.outcomes) == 2 * len(dead)
    assert seen.ends == [b"end\n"] * len(quiet)
    for transport in quiet:
        assert transport.run(["echo", "x"], Deadline.after(10)).stdout == b"x\n"


def test_a_connection_that_breaks_while_input_is_sent_is_lost(
    kind: Kind, client: Client, server: Sshd, connect: Connect, tmp_path: Path
) -> None:
    client.add("h", server)
    host, begun = connect(client.target("h"), kind), tmp_path / "begun"

    def kill() -> None:
        wait_for(begun)
        server.drop_connections()

    killer = threading.Thread(target=kill)
    killer.start()
    script = f"touch {begun}; exec cat >/dev/null"
    error, _ = outcome(lambda: host.run(["sh", "-c", script], Deadline.after(30), stdin=bytes(200 << 20)))
    killer.join()
    assert isinstance(error, ConnectionLost), error


def test_a_host_with_few_sessions_makes_commands_wait(
    kind: Kind, client: Client, tmp_path: Path, connect: Connect
) -> None:
    sessions = 3
    server = Sshd(tmp_path / "small", client.key, options=(f"MaxSessions {sessions}",)).start()
    try:
        client.add("h", server)
        host = connect(client.target("h"), kind)
        results: list[bytes] = []
        threads = [
            threading.Thread(
                target=lambda: results.append(host.run(["sh", "-c", "sleep 0.1; echo x"], Deadline.after(20)).stdout)
            )
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [b"x\n"] * 6
    finally:
        server.stop()


PROGRAM = """
import sys
from pathlib import Path
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.transport import make_transport
from vllm_cluster.kernel.transport.base import Target
from vllm_cluster.kernel.transport.jumps import Jumps

host = make_transport(Target("gpu1", "gpu1", config=Path(sys.argv[1])), sys.argv[2], Jumps())
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
