"""What a host, and a proxy on the way to it, writes is not taken for words of ssh, whose own are believed."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.carriers import Client, failure, refused_by
from tests.support.sshd import USER, Sshd, keygen
from vllm_cluster.kernel.errors import AuthenticationFailed, HostKeyRejected, Unreachable
from vllm_cluster.kernel.transport import Kind

BANNERS = (
    "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!\nOffending ED25519 key in /tmp/known:1\n"
    "Host key for [127.0.0.1]:22 has changed",
    "debug1: Server host key: ssh-ed25519 SHA256:EVIL\n"
    "No ED25519 host key is known for [127.0.0.1]:22 and you have requested strict checking.",
    "host key for bastion was revoked by /tmp/x",
    "Authenticated to x\ndebug1: Entering interactive session.",
    "root@127.0.0.1: Permission denied (password).",
    "Received disconnect: Too many authentication failures",
    "channel 0: open failed: administratively prohibited: x\nstdio forwarding failed",
)


# fault: kernel/transport/ssh_master.py: ssh = [*self._alone, "-E", str(log_pipe), → ssh = [*self._alone,
@pytest.mark.parametrize("banner", BANNERS)
def test_a_banner_of_the_host_is_not_taken_for_words_of_ssh(
    kind: Kind, client: Client, tmp_path: Path, banner: str
) -> None:
    """It comes before the login, and a host may accuse its jump host in it."""
    (tmp_path / "banner").write_text(f"{banner}\n")
    server = Sshd(tmp_path / "sshd", keygen(tmp_path / "other"), options=(f"Banner {tmp_path / 'banner'}",)).start()
    error = refused_by(server, client, kind)
    assert isinstance(error, AuthenticationFailed)
    assert "no offered key was accepted" in error.message
    assert not any(word in f"{error.message} {error.hint}" for word in ("ssh-keygen", "EVIL", "revoked", "ssh-add"))


def packet(kind: int, *parts: bytes) -> bytes:
    """A message of SSH before any keys: RFC 4253, section 6."""
    payload = bytes([kind]) + b"".join(parts)
    padding = 16 - (len(payload) + 5) % 8
    return struct.pack(">IB", len(payload) + padding + 1, padding) + payload + bytes(padding)


def text_of(text: str) -> bytes:
    """A string as messages hold it."""
    return struct.pack(">I", len(text.encode())) + text.encode()


@contextmanager
def hanging_up(words: str, version: bytes = b"SSH-2.0-OpenSSH_9.2\r\n") -> Iterator[int]:
    """The port of a host that ends each connection with these words, in a debug message and as its reason."""
    ends = packet(4, b"\1", text_of(words), text_of("")) + packet(1, struct.pack(">I", 2), text_of(words), text_of(""))

    def serve() -> None:
        with suppress(OSError):
            while True:
                sock, _ = server.accept()
                with sock, suppress(OSError):
                    sock.sendall(version)
                    sock.recv(200)
                    sock.sendall(ends)
                    sock.settimeout(2)
                    while sock.recv(4096):
                        pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


ENDS = (
    "x\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!\nOffending ED25519 key in KNOWN:1\n"
    "Host key for [127.0.0.1]:JUMP has changed",
    "x\r\nhost key for [127.0.0.1]:JUMP was revoked by KNOWN",
    "x\nNo ED25519 host key is known for [127.0.0.1]:JUMP and you have requested strict checking.",
    f"x\n{USER}@127.0.0.1: Permission denied (password).",
    "x\nAuthenticated to x\nclient_loop: x",
    "x\nssh: connect to host 127.0.0.1 port JUMP: Connection refused",
)


# fault: kernel/transport/ssh_log.py: None if "debug1: Remote protocol version" in own else of_proxy → of_proxy
# fault: kernel/transport/ssh_log.py: own = _before(_HOSTS_WORDS, log) → own = log
@pytest.mark.parametrize("words", ENDS, ids=range(len(ENDS)))
def test_the_reason_of_a_host_accuses_no_other(kind: Kind, client: Client, tmp_path: Path, words: str) -> None:
    """It comes before any key is known, and ssh's log has it with its line ends."""
    jump = Sshd(tmp_path / "jump", client.key).start()
    words = words.replace("KNOWN", str(client.known)).replace("JUMP", str(jump.port))
    try:
        client.add("jump", jump)
        with hanging_up(words) as port:
            client.hosts += ["Host h", "HostName 127.0.0.1", f"Port {port}", "ProxyJump jump"]
            client.write()
            error = failure(client.target("h"), kind)
    finally:
        jump.stop()
    assert isinstance(error, Unreachable)
    assert not isinstance(error, HostKeyRejected)
    assert str(jump.port) not in f"{error.lines[0].partition(chr(10))[0]} {error.hint}".replace(f"127.0.0.1:{port}", "")
    assert "ssh-keygen" not in str(error.hint)


# fault: kernel/transport/ssh_log.py: _key_rejected(own, "\n".join(words(own)), at) → _key_rejected(own, text + of_proxy, at)
def test_the_banner_of_a_proxy_accuses_no_host(client: Client, tmp_path: Path) -> None:
    """Its ssh is a command of the person's: what it prints is shown, and is about none."""
    (tmp_path / "banner").write_text(f"{BANNERS[0]}\n")
    options = (f"Banner {tmp_path / 'banner'}", "AllowTcpForwarding no")
    proxy = Sshd(tmp_path / "proxy", client.key, options=options).start()
    try:
        client.add("proxy", proxy)
        client.hosts += ["Host h", f"ProxyCommand ssh -F {client.config} -W %h:%p proxy"]
        client.write()
        error = failure(client.target("h"), "openssh")
    finally:
        proxy.stop()
    assert "through ssh -F" in error.message
    assert "administratively prohibited" in error.message
    assert "ssh-keygen" not in str(error.hint)


# fault: kernel/transport/fabric/hop.py: if "banner" in text and wire.received: → if False:
@pytest.mark.parametrize("version", [b"SSH-2.0\rfix: touch x\r\n", b"x\rfix: touch x\r\nx\r\n", b"220 mail\r\n"])
def test_what_does_not_speak_ssh_is_named_so(kind: Kind, client: Client, version: bytes) -> None:
    """It was a host that does not answer, with a remedy about a firewall."""
    client.write()
    with hanging_up("x", version) as port:
        client.hosts = ["Host h", "HostName 127.0.0.1", f"Port {port}"]
        client.write()
        error = failure(client.target("h"), kind)
    assert isinstance(error, Unreachable)
    assert any(word in error.message for word in ("SSH handshake with", "closed the connection"))
    assert "no answer" not in error.message
