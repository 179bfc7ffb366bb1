"""A server that takes its time, or sends more than it may."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import paramiko
import pytest
from paramiko.common import MSG_CHANNEL_DATA, MSG_CHANNEL_EXTENDED_DATA, MSG_CHANNEL_FAILURE, cMSG_CHANNEL_REQUEST

from tests.support.bounds import within
from tests.support.clock import Clock
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import AuthenticationFailed
from vllm_cluster.kernel.transport.base import Target
from vllm_cluster.kernel.transport.fabric import keepalive
from vllm_cluster.kernel.transport.fabric.keepalive import (
    MAX_ANSWERS,
    MAX_HOST_KEY,
    MAX_PACKET,
    KeepaliveSocket,
    KeepaliveTransport,
)
from vllm_cluster.kernel.transport.fabric.login import Credentials
from vllm_cluster.kernel.transport.jumps import Jumps
from vllm_cluster.kernel.transport.openssh import OpenSshTransport
from vllm_cluster.kernel.transport.ssh_config import SshEndpoint


# fault: kernel/transport/fabric/keepalive.py: if size > MAX_PACKET: → if False:
def test_a_packet_that_announces_gigabytes_is_not_waited_for() -> None:
    """Before the key of the host is looked at, so that anyone on the way can send it: 267 MB came in 12 s."""
    wire = KeepaliveSocket(SimpleNamespace(recv=bytes))
    assert len(wire.recv(MAX_PACKET)) == MAX_PACKET
    with pytest.raises(paramiko.SSHException, match="announces a packet of 2147483647 bytes"):
        wire.recv(2**31 - 1)
    assert wire.failure


# fault: kernel/transport/fabric/keepalive.py: if unread > channel.in_window_size: → if False:
@pytest.mark.parametrize("kind", [MSG_CHANNEL_DATA, MSG_CHANNEL_EXTENDED_DATA])
def test_a_channel_keeps_no_more_than_its_window(kind: int) -> None:
    """A stream that is not read for a moment: 562 MB came in 12 s."""
    channel: Any = paramiko.Channel(1)
    channel._set_window(100, 50)
    channel.transport = SimpleNamespace(sock=SimpleNamespace(failure=""), unasked=keepalive.Unasked())

    def feed() -> None:
        message = paramiko.Message()
        if kind == MSG_CHANNEL_EXTENDED_DATA:
            message.add_int(1)
        message.add_string(b"x" * 50)
        message.rewind()
        KeepaliveTransport._channel_handler_table[kind](channel, message)

    feed()
    feed()
    with pytest.raises(paramiko.SSHException, match="more than the window of 100 bytes"):
        for _ in range(2):
            feed()
    assert channel.transport.sock.failure
    assert len(channel.in_buffer) + len(channel.in_stderr_buffer) <= 150


class Host(paramiko.Transport):
    """A host that asks for answers as soon as it is asked for new keys, and agrees on them after that, if it does."""

    asks, agrees, begun, asked = 0, True, False, False

    def _negotiate_keys(self, message: paramiko.Message) -> None:
        if self.begun:
            self.asked = True
            asked = paramiko.Message()
            asked.add_byte(cMSG_CHANNEL_REQUEST)
            asked.add_int(0)
            asked.add_string("keepalive@openssh.com")
            asked.add_boolean(True)
            for _ in range(self.asks):
                self.packetizer.send_message(asked)
        if self.agrees or not self.begun:
            super()._negotiate_keys(message)  # type: ignore[misc]


class Everybody(paramiko.ServerInterface):
    """Lets everybody in, to do anything."""

    check_auth_none = check_channel_request = lambda *_: 0  # type: ignore[assignment]


@pytest.fixture
def connected() -> Iterator[tuple[KeepaliveTransport, Host, paramiko.Channel]]:
    """A connection with a channel, and its host."""
    ours, theirs = socket.socketpair()
    client, host = KeepaliveTransport(KeepaliveSocket(ours)), Host(theirs)
    host.add_server_key(paramiko.ECDSAKey.generate())
    with closing(client), closing(host):
        host.start_server(threading.Event(), Everybody())
        client.start_client(timeout=20)
        client.auth_none("u")
        channel = client.open_session(timeout=20)
        host.begun = True
        yield client, host, channel


def wait_for(what: Callable[[], object]) -> None:
    """Wait for it."""
    due = Deadline.after(20)
    while not what():
        assert due.left()
        time.sleep(0.01)


def ask_for_new_keys(client: KeepaliveTransport, host: Host) -> None:
    """Have the client ask, as after 512 MB."""
    client.packetizer.REKEY_BYTES = 1
    client.send_ignore(10)
    wait_for(lambda: host.asked)
    del client.packetizer.REKEY_BYTES


# fault: kernel/transport/fabric/keepalive.py: if len(self._answers) >= MAX_ANSWERS: → if False:
def test_a_host_that_asks_on_before_there_are_new_keys_gets_no_thread_for_each(
    connected: tuple[KeepaliveTransport, Host, paramiko.Channel],
) -> None:
    """After 512 MB, which are on the way within seconds: 5,000 requests took 5,000 threads."""
    client, host, _ = connected
    host.asks, host.agrees = MAX_ANSWERS + 500, False
    threads = threading.active_count()
    ask_for_new_keys(client, host)
    wait_for(lambda: not client.is_active())
    assert threading.active_count() <= threads
    assert cast(KeepaliveSocket, client.sock).failure == "it sends more than 1024 requests before it agrees on new keys"


# fault: kernel/transport/fabric/keepalive.py: for one in answers: → for one in []:
def test_what_a_host_asks_before_there_are_new_keys_is_answered_after(
    connected: tuple[KeepaliveTransport, Host, paramiko.Channel],
) -> None:
    client, host, channel = connected
    answered: list[object] = []
    handlers: Any = host
    handlers._channel_handler_table = {
        **handlers._channel_handler_table,
        MSG_CHANNEL_FAILURE: lambda _, m: answered.append(m),
    }
    host.asks = 20
    ask_for_new_keys(client, host)
    wait_for(lambda: len(answered) >= 20)
    assert client.is_active()
    assert not channel.closed


# fault: kernel/transport/fabric/keepalive.py: if judged is not None and judged != self.host_key: → if False:
def test_a_host_keeps_its_key_for_the_whole_connection(
    connected: tuple[KeepaliveTransport, Host, paramiko.Channel],
) -> None:
    """Only the first was compared with known_hosts."""
    client, host, _ = connected
    host.add_server_key(paramiko.ECDSAKey.generate())
    ask_for_new_keys(client, host)
    wait_for(lambda: not client.is_active())
    assert cast(KeepaliveSocket, client.sock).failure == "its host key changed within the connection"


# Messages that were not requested, and bring no output.
FLOODS: dict[str, tuple[bytes, ...]] = {
    "ignored": (b"\x02", b"\0\0\0\0"),
    "debugging": (b"\x04\1", b"\0\0\0\1x", b"\0\0\0\0"),
    "long": (b"\x04\1", b"\0\0\x75\x30", b"x" * 30_000, b"\0\0\0\0"),
    "with an answer": (b"\x50", b"\0\0\0\1x", b"\1"),
    "window": (b"\x5d", b"\0\0\0\0", b"\0\0\0\1"),
    "empty": (b"\x5e", b"\0\0\0\0", b"\0\0\0\0"),
    "after the end": (b"\x5e", b"\0\0\0\0", b"\0\0\0\1x"),
    "of no kind": (b"\x5f", b"\0\0\0\0", b"\0\0\0\7", b"\0\0\0\1x"),
}


# fault: kernel/transport/fabric/keepalive.py: return self._left >= 0 → return True
# fault: kernel/transport/fabric/keepalive.py: return 1 + len(message.asbytes()) // LARGE_MESSAGE → return 1
# fault: kernel/transport/fabric/keepalive.py: if threading.current_thread() is not self: → if True:
# fault: kernel/transport/fabric/keepalive.py: if len(given) > head and given[: head - 4].endswith(kind): → if len(given) > head:
# fault: kernel/transport/fabric/keepalive.py: if len(given) > head and given[: head - 4].endswith(kind): → if given[: head - 4].endswith(kind):
@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_that_brings_nothing_ends_the_connection(
    connected: tuple[KeepaliveTransport, Host, paramiko.Channel], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """For the 60 s that a command may take, each took 20 to 30 s of a core."""
    client, host, _ = connected
    monkeypatch.setattr(keepalive, "UNASKED_AT_ONCE", 1000)
    monkeypatch.setattr(keepalive, "UNASKED_A_SECOND", 0)
    if kind == "after the end":
        cast(Any, client)._channels.delete(0)
    with contextlib.suppress(OSError, EOFError):
        for _ in range(50 if kind == "long" else 1500):
            host.packetizer.send_message(paramiko.Message(b"".join(FLOODS[kind])))
    wait_for(lambda: not client.is_active())
    assert cast(KeepaliveSocket, client.sock).failure == "it sends messages without end that bring nothing"


# fault: kernel/transport/fabric/keepalive.py: def _parse_debug(self → def _parse_no_debug(self
def test_a_debug_message_of_a_host_is_not_read() -> None:
    wire: Any = SimpleNamespace(settimeout=lambda _: None)
    client: Any = KeepaliveTransport(KeepaliveSocket(wire))
    with within(1):
        for _ in range(20):
            client._parse_debug(paramiko.Message(b"\1\0\1\0\0" + b"\x1b" * 65_536 + b"\0\0\0\0"))


# fault: kernel/transport/fabric/keepalive.py: self.unasked.add(-FOR_EACH_SENT) → pass
# fault: kernel/transport/fabric/keepalive.py: channel.transport.unasked.add(-_weight(message)) → pass
@pytest.mark.parametrize("output", [b"\x5e\0\0\0\0\0\0\0\1x", b"\x5f\0\0\0\0\0\0\0\1\0\0\0\1x"])
def test_what_was_asked_for_and_output_may_come_as_often_as_it_does(
    connected: tuple[KeepaliveTransport, Host, paramiko.Channel], monkeypatch: pytest.MonkeyPatch, output: bytes
) -> None:
    """A tunnel carries the words of many answers for weeks, and a session or two for each."""
    client, host, channel = connected
    monkeypatch.setattr(keepalive, "UNASKED_AT_ONCE", 100)
    monkeypatch.setattr(keepalive, "UNASKED_A_SECOND", 0)
    for _ in range(200):
        client.global_request("keepalive@openssh.com")
        for _ in range(5):
            host.packetizer.send_message(paramiko.Message(output))
            assert (channel.recv(1) if output[:1] == b"\x5e" else channel.recv_stderr(1)) == b"x"
    assert client.is_active()


# fault: kernel/transport/fabric/keepalive.py: time.monotonic() - self._sending > PACKET_SECONDS: → False:
@pytest.mark.parametrize("late", [True, False])
def test_a_peer_that_takes_a_packet_byte_by_byte_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """A jump host that grants a byte now and then, and sends on itself: a login waited for it without end."""
    clock, taken = Clock(), list[bytes]()

    def take(data: bytes) -> int:
        clock.sleep(5)
        if late:
            raise TimeoutError
        taken.append(data[:1])
        return 1

    wire = KeepaliveSocket(SimpleNamespace(send=take, recv=bytes))
    monkeypatch.setattr(keepalive, "time", SimpleNamespace(monotonic=lambda: clock.now))
    wire.recv(1)
    with pytest.raises(ConnectionAbortedError, match="did not take a packet within 30 s"):
        for _ in range(100):
            with contextlib.suppress(TimeoutError):
                wire.send(b"xy")
            wire.recv(1)
    assert wire.failure
    assert clock.now <= keepalive.PACKET_SECONDS + 10


def test_a_packet_that_is_taken_begins_the_time_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1.0]
    monkeypatch.setattr(keepalive, "time", SimpleNamespace(monotonic=lambda: now[0]))
    wire = KeepaliveSocket(SimpleNamespace(send=len, recv=bytes))
    for _ in range(5):
        now[0] += keepalive.PACKET_SECONDS - 1
        assert wire.send(b"xy") == 2


# fault: kernel/transport/fabric/keepalive.py: message.rewind() → pass
def test_the_extensions_of_a_server_are_those_that_it_sends() -> None:
    wire: Any = SimpleNamespace(settimeout=lambda _: None)
    client: Any = KeepaliveTransport(KeepaliveSocket(wire))
    sent = paramiko.Message()
    sent.add_int(1)
    sent.add_string("server-sig-algs")
    sent.add_string("ssh-ed25519")
    client._parse_ext_info(paramiko.Message(sent.asbytes()))
    assert client.server_extensions == {"server-sig-algs": b"ssh-ed25519"}
    with pytest.raises(paramiko.SSHException, match="more extensions than it sends"):
        client._parse_ext_info(paramiko.Message(b"\xff\xff\xff\xff"))


# fault: kernel/transport/fabric/keepalive.py: if not name.startswith("diffie-hellman") → if name
def test_no_host_chooses_the_numbers_of_a_key_exchange() -> None:
    """Before its key is looked at, a prime below zero kept a core busy, also after the connection was closed."""
    wire: Any = SimpleNamespace(settimeout=lambda _: None)
    offered = KeepaliveTransport(KeepaliveSocket(wire)).get_security_options().kex
    assert "curve25519-sha256@libssh.org" in offered
    assert "ecdh-sha2-nistp256" in offered
    assert not [name for name in offered if "diffie-hellman" in name]


# fault: kernel/transport/fabric/keepalive.py: if max(len(host_key), len(sig)) > MAX_HOST_KEY: → if False:
@pytest.mark.parametrize("long", [0, 1])
def test_a_host_key_that_no_host_has_is_not_read(long: int) -> None:
    """One of 1 MB, which anyone on the way can send, took 107 s of a core."""
    wire: Any = SimpleNamespace(settimeout=lambda _: None)
    client: Any = KeepaliveTransport(KeepaliveSocket(wire))
    client.host_key_type = "ecdsa-sha2-nistp256"
    given = [paramiko.ECDSAKey.generate().asbytes(), b"signature"]
    given[long] += b"1" * MAX_HOST_KEY
    with pytest.raises(paramiko.SSHException, match="more than 16384 bytes"):
        client._verify_key(*given)
    assert client.sock.failure


# fault: kernel/transport/fabric/login.py: if not self._deadline.left(): → if False:
# fault: kernel/transport/fabric/login.py: min(transport.auth_timeout, self._deadline.left()) → transport.auth_timeout
def test_a_host_that_refuses_each_key_late_gets_the_time_of_one_login(tmp_path: Path) -> None:
    """Eight keys, refused after 8 s each, took 74 s of a login that has 20."""
    clock, limits = Clock(), list[float]()
    files = [tmp_path / f"key{number}" for number in range(8)]
    for file in files:
        paramiko.ECDSAKey.generate().write_private_key_file(str(file))

    def refuse(_user: str, key: paramiko.PKey | None = None) -> list[str]:
        limits.append(transport.auth_timeout)
        clock.sleep(min(8, transport.auth_timeout))
        if key is None:
            raise paramiko.BadAuthenticationType("", ["publickey"])
        raise paramiko.AuthenticationException

    transport: Any = SimpleNamespace(
        auth_timeout=10.0,
        auth_none=refuse,
        auth_publickey=refuse,
        is_active=lambda: True,
        is_authenticated=lambda: False,
    )
    at = SshEndpoint("gpu1", "h", "h", 22, "u", identities=tuple(files), identities_only=True)
    with pytest.raises(AuthenticationFailed, match="did not answer in time"):
        Credentials(at, Deadline.after(20, clock)).authenticate(transport)
    assert clock.now == 20
    assert limits == [10, 10, 4]


# fault: kernel/transport/fabric/login.py: return transport.is_authenticated() → return not methods or transport.is_active()
# fault: kernel/transport/fabric/login.py: if transport.is_authenticated(): → if not more:
@pytest.mark.parametrize("more", [["publickey", "keyboard-interactive"], []])
def test_a_login_by_several_methods_is_not_over_after_one(tmp_path: Path, more: list[str]) -> None:
    """Where "none" or a key was one of several, the login counted as over, and the error was about MaxSessions."""
    file = tmp_path / "key"
    paramiko.ECDSAKey.generate().write_private_key_file(str(file))
    transport: Any = SimpleNamespace(
        auth_timeout=10.0,
        auth_none=lambda _: ["publickey"],
        auth_publickey=lambda *_: more,
        is_active=lambda: True,
        is_authenticated=lambda: False,
    )
    at = SshEndpoint("gpu1", "h", "h", 22, "u", identities=(file,), identities_only=True)
    with pytest.raises(AuthenticationFailed, match=r"a key was accepted, but .* is also required"):
        Credentials(at, Deadline.after(20)).authenticate(transport)


# fault: kernel/transport/openssh.py: why = master.last_words() if master.gone() else → why = master.last_words() if master else
@pytest.mark.parametrize(("gone", "why"), [(True, "Broken pipe"), (False, "it ended without an exit code")])
def test_a_host_that_gives_no_exit_code_is_named_so(gone: bool, why: str) -> None:
    """The error had the mark before the output of the connection's own command as its reason."""
    at = SimpleNamespace(where="u@h:22")
    master: Any = SimpleNamespace(gone=lambda: gone, last_words=lambda: "Broken pipe", resolved=at)
    carrier = OpenSshTransport(Target("gpu1", "h"), Jumps())
    assert str(carrier._lost(master, "`true`")) == f"gpu1: the connection to u@h:22 was lost during `true`: {why}"
