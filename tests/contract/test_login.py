"""Reaching a host and being let in, or an error with its remedy."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.carriers import Client, failure, make, refused_by
from tests.support.figures import tallied
from tests.support.ports import free_port
from tests.support.sshd import USER, Sshd, keygen
from tests.support.waiting import until
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import AuthenticationFailed, Unreachable, UsageError, VclusterError
from vllm_cluster.kernel.transport import Kind
from vllm_cluster.kernel.transport.base import Target, Transport
from vllm_cluster.kernel.transport.fabric import FabricTransport

Connect = Callable[[Target, Kind], Transport]


def works(transport: Transport) -> None:
    assert transport.run(["echo", "x"], Deadline.after(10)).stdout == b"x\n"


def test_the_inventory_overrules_ssh_config(
    *, kind: Kind, client: Client, shared_server: Sshd, connect: Connect, tmp_path: Path, user_key: Path
) -> None:
    client.add("h", shared_server)
    client.hosts = ["Host h", "HostName 127.0.0.1", "Port 1", "User nobody"]
    client.key = tmp_path / "no-such-key"
    client.write()
    works(connect(client.target("h", user=USER, port=shared_server.port, identity=user_key), kind))
    works(connect(client.target(f"ssh://{USER}@h:{shared_server.port}", identity=user_key), kind))


def test_an_included_file_and_a_match_are_followed(
    kind: Kind, client: Client, shared_server: Sshd, connect: Connect
) -> None:
    client.known.write_text(shared_server.known_line())
    (client.folder / "more").write_text(f"Host inc\n HostName 127.0.0.1\n Port {shared_server.port}\n")
    client.write(f"Include {client.folder}/mor*", "Match originalhost inc", f"User {USER}")
    works(connect(client.target("inc"), kind))


def test_a_closed_port_is_reported_at_once(kind: Kind, client: Client, shared_server: Sshd) -> None:
    client.add("h", shared_server)
    port, started = free_port(), time.monotonic()
    error = failure(client.target("h", port=port), kind)
    assert time.monotonic() - started < 5
    assert isinstance(error, Unreachable)
    assert error.message.startswith(f"gpu1: nothing listens on 127.0.0.1:{port}")
    assert error.exit_code == 4


def test_a_name_without_address_is_reported(kind: Kind, client: Client) -> None:
    error = failure(client.target("no-such-host.invalid"), kind)
    assert "cannot resolve host name no-such-host.invalid" in error.message


@pytest.mark.parametrize("words", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.0 400 Bad\r\n"])
def test_a_login_that_hangs_ends_at_its_deadline(kind: Kind, client: Client, shared_server: Sshd, words: bytes) -> None:
    client.add("h", shared_server)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        accepted: list[socket.socket] = []

        def serve() -> None:
            sock, _ = silent.accept()
            sock.sendall(words)
            accepted.append(sock)

        thread = threading.Thread(target=serve)
        thread.start()
        started = time.monotonic()
        error = failure(client.target("h", port=silent.getsockname()[1]), kind, seconds=0.6)
        assert time.monotonic() - started < 6
        thread.join()
        accepted[0].close()
    assert isinstance(error, Unreachable)
    assert "127.0.0.1" in error.message


def test_a_server_that_hangs_up_first_is_reported(kind: Kind, client: Client, shared_server: Sshd) -> None:
    client.add("h", shared_server)
    with socket.create_server(("127.0.0.1", 0)) as rude:
        accepted = []

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    rude.accept()[0].close()
                    accepted.append(1)

        thread = threading.Thread(target=hang_up)
        thread.start()
        error = failure(client.target("h", port=rude.getsockname()[1]), kind, seconds=2)
        rude.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert len(accepted) > 1, "sshd drops some connections when many come, so one refusal is no verdict"
    assert "closed the connection before the login" in error.message
    assert error.hint is not None
    assert "MaxStartups" in error.hint


def test_a_refused_key_lists_which_were_offered(
    kind: Kind, client: Client, shared_server: Sshd, tmp_path: Path
) -> None:
    client.key = keygen(tmp_path / "stranger")
    client.add("h", shared_server)
    listed = subprocess.run(["ssh-keygen", "-lf", client.key], capture_output=True, text=True, check=True)
    error = failure(client.target("h"), kind)
    assert isinstance(error, AuthenticationFailed)
    assert f"authentication failed for {USER}@127.0.0.1:{shared_server.port}" in error.message
    assert listed.stdout.split()[1] in error.message
    assert str(client.key) in error.message


def test_a_named_key_that_does_not_exist_is_left_out_with_a_word(
    kind: Kind, client: Client, shared_server: Sshd, tmp_path: Path
) -> None:
    client.key = tmp_path / "no-such-key"
    client.add("h", shared_server)
    text = failure(client.target("h"), kind).message
    assert f"left out: {client.key} (no such file)" in text


# fault: kernel/transport/fabric/login.py: seen.st_mode & 0o077 → False
def test_a_key_that_others_may_read_is_none(
    kind: Kind, client: Client, tmp_path: Path, shared_server: Sshd, connect: Connect
) -> None:
    """As it is to ssh."""
    client.key = tmp_path / "open"
    client.key.write_bytes(shared_server.user_key.read_bytes())
    client.key.chmod(0o640)
    client.add("h", shared_server)
    assert isinstance(failure(client.target("h"), kind), AuthenticationFailed)
    client.key.chmod(0o600)
    connect(client.target("h"), kind)


def test_a_key_behind_a_passphrase_is_not_asked_for(
    kind: Kind, client: Client, shared_server: Sshd, tmp_path: Path
) -> None:
    client.key = keygen(tmp_path / "locked", passphrase="secret words")
    client.add("h", shared_server)
    error = failure(client.target("h"), kind)
    assert isinstance(error, AuthenticationFailed)


@pytest.mark.parametrize("algorithm", ["ecdsa", "rsa"])
def test_other_kinds_of_key_work(kind: Kind, client: Client, tmp_path: Path, connect: Connect, algorithm: str) -> None:
    client.key = keygen(tmp_path / "id", algorithm)
    server = Sshd(tmp_path / "sshd", client.key, host_key_kinds=(algorithm,)).start()
    try:
        client.add("h", server)
        works(connect(client.target("h"), kind))
    finally:
        server.stop()


# fault: kernel/transport/fabric/keepalive.py: not name.endswith(AUTHENTICATED) → name.endswith(AUTHENTICATED)
@pytest.mark.parametrize(("known", "taken"), [("", "aes128-gcm@openssh.com"), ("aes256-ctr", "aes256-ctr")])
def test_a_cipher_that_needs_no_digest_is_taken_where_the_server_has_one(
    client: Client, tmp_path: Path, connect: Connect, known: str, taken: str
) -> None:
    server = Sshd(tmp_path / "sshd", client.key, options=(f"Ciphers {known}",) if known else ()).start()
    try:
        client.add("h", server)
        host = connect(client.target("h"), "fabric")
        assert isinstance(host, FabricTransport)
        assert host._link().session.local_cipher == taken
        works(host)
    finally:
        server.stop()


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An agent of this test's own."""
    path = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    until(partial(_listens, path), 5, every=0.01)
    yield path
    process.terminate()
    process.wait()


def _listens(path: Path) -> bool:
    """Whether connections are taken: the socket is there a moment before."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as one:
        return one.connect_ex(str(path)) == 0


@pytest.mark.parametrize("how", ["variable", "ssh_config", "among others"])
def test_a_key_in_the_agent_works(
    *, kind: Kind, client: Client, shared_server: Sshd, connect: Connect, agent: Path, user_key: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, how: str,
) -> None:  # fmt: skip
    keys = [keygen(tmp_path / f"k{n}") for n in range(3)] if how == "among others" else []
    for key in (*keys, user_key):
        subprocess.run(["ssh-add", "-q", key], check=True, env={**os.environ, "SSH_AUTH_SOCK": str(agent)})
    only_public = tmp_path / "public"
    only_public.with_suffix(".pub").write_bytes(user_key.with_suffix(".pub").read_bytes())
    client.key = only_public if how == "variable" else tmp_path / "none"
    if how == "ssh_config":
        client.add("h", shared_server, f"IdentityAgent {agent}", "IdentitiesOnly no")
    else:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
        client.add("h", shared_server, f"IdentitiesOnly {'yes' if how == 'variable' else 'no'}")
    works(connect(client.target("h"), kind))


@pytest.fixture(scope="module")
def refused() -> Iterator[dict[str, bool]]:
    """Of each case, whether nothing was run; kept as the figure of P15."""
    with tallied("P15", "options in place of hosts, users and jump hosts, both transports", "refused, 0 run") as cases:
        yield cases


@pytest.mark.promise("P15")
@pytest.mark.parametrize(
    "words",
    [
        {"destination": "-oProxyCommand=touch {mark}"},
        {"destination": "-oProxyCommand=touch${{IFS}}{mark}"},
        {"destination": "h;touch {mark}"},
        {"destination": "$(touch {mark})"},
        {"destination": ""},
        {"destination": "h\nProxyCommand x"},
        {"destination": "h\0"},
        {"user": "-oProxyCommand=touch {mark}"},
        {"user": "a b"},
        {"user": "$(id)`id`"},
        {"jump": "-oProxyCommand=touch {mark}"},
        {"jump": "h,-F{mark}"},
    ],
)
def test_names_that_are_options_or_commands_are_refused(
    *, kind: Kind, client: Client, shared_server: Sshd, tmp_path: Path, words: dict[str, str], refused: dict[str, bool]
) -> None:
    client.add("h", shared_server)
    mark, case = tmp_path / "mark", f"{words}, {kind}"
    refused[case] = False
    with pytest.raises(UsageError):
        make(client.target("h", **{key: value.format(mark=mark) for key, value in words.items()}), kind)
    refused[case] = not mark.exists()
    assert refused[case]


def test_an_unreadable_ssh_config_is_reported(kind: Kind, client: Client, shared_server: Sshd) -> None:
    client.add("h", shared_server)
    client.write("NoSuchOption yes")
    transport = make(client.target("h"), kind)
    with pytest.raises(UsageError, match=r"(?s)gpu1.*(nosuchoption|NoSuchOption)"):
        transport.connect(Deadline.after(10))
    transport.close()


def test_nothing_runs_before_connect(kind: Kind, client: Client, shared_server: Sshd) -> None:
    client.add("h", shared_server)
    transport = make(client.target("h"), kind)
    with pytest.raises(Unreachable, match="no connection"):
        transport.run(["true"], Deadline.after(5))
    transport.close()
    transport.close()


def test_connect_again_connects_again(kind: Kind, client: Client, server: Sshd, connect: Connect) -> None:
    client.add("h", server)
    transport = connect(client.target("h"), kind)
    transport.connect(Deadline.after(10))
    works(transport)
    server.drop_connections()
    until = time.monotonic() + 10
    while True:
        try:
            transport.run(["true"], Deadline.after(5))
        except Unreachable:
            break
        except VclusterError:
            assert time.monotonic() < until
    transport.connect(Deadline.after(10))
    works(transport)


@pytest.mark.parametrize("kept", ["file", "agent"])
def test_a_certificate_works(
    *,
    kind: Kind,
    client: Client,
    connect: Connect,
    agent: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kept: str,
) -> None:
    authority, client.key = keygen(tmp_path / "authority"), keygen(tmp_path / "user")
    sign = ["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", USER, f"{client.key}.pub"]
    subprocess.run(sign, check=True)
    stranger = keygen(tmp_path / "stranger")
    server = Sshd(tmp_path / "sshd", stranger, options=(f"TrustedUserCAKeys {authority}.pub",)).start()
    if kept == "agent":
        subprocess.run(["ssh-add", "-q", client.key], check=True, env={**os.environ, "SSH_AUTH_SOCK": str(agent)})
        monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
        client.key = tmp_path / "none"
    try:
        client.add("h", server, "IdentitiesOnly no")
        works(connect(client.target("h"), kind))
    finally:
        server.stop()


@pytest.mark.promise("P39")
def test_too_many_keys_are_an_error_that_shows_how_to_offer_one(
    *, kind: Kind, client: Client, agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        key = keygen(tmp_path / f"k{n}")
        subprocess.run(["ssh-add", "-q", key], check=True, env={**os.environ, "SSH_AUTH_SOCK": str(agent)})
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    server = Sshd(tmp_path / "sshd", client.key, options=("MaxAuthTries 2",)).start()
    try:
        client.key = tmp_path / "none"
        client.add("h", server, "IdentitiesOnly no")
        error = failure(client.target("h"), kind)
    finally:
        server.stop()
    assert isinstance(error, AuthenticationFailed)
    assert "after too many keys (MaxAuthTries)" in error.message
    assert error.hint and "for h: IdentityFile KEY and IdentitiesOnly yes" in error.hint
    assert "ssh-copy-id" not in error.hint


@pytest.mark.promise("P39")
def test_a_second_factor_is_reported_as_one(kind: Kind, client: Client, tmp_path: Path) -> None:
    options = ("PasswordAuthentication yes", "AuthenticationMethods publickey,password")
    server = Sshd(tmp_path / "sshd", client.key, options=options).start()
    error = refused_by(server, client, kind)
    assert isinstance(error, AuthenticationFailed)
    assert "a key was accepted, but password is also required" in error.message
    assert error.hint and f"Match User {USER}, AuthenticationMethods publickey" in error.hint


@pytest.mark.promise("P39")
def test_a_server_without_sessions_is_reported_as_one(kind: Kind, client: Client, tmp_path: Path) -> None:
    server = Sshd(tmp_path / "sshd", client.key, options=("MaxSessions 0",)).start()
    transport = make(client.target("h"), kind)
    try:
        client.add("h", server)
        with pytest.raises(Unreachable, match="opens no more sessions") as caught:
            transport.connect(Deadline.after(20))
            transport.run(["true"], Deadline.after(20))
    finally:
        transport.close()
        server.stop()
    assert caught.value.hint and "MaxSessions" in caught.value.hint


def test_a_lost_connection_is_not_explained_by_statistics(client: Client, server: Sshd, connect: Connect) -> None:
    client.add("h", server)
    transport = connect(client.target("h"), "openssh")
    until = time.monotonic() + 10
    server.drop_connections()
    while time.monotonic() < until:
        with pytest.raises(VclusterError) as caught:
            transport.run(["true"], Deadline.after(5))
        if isinstance(caught.value, Unreachable):
            break
    assert "was lost earlier: " in caught.value.message
    assert not set(caught.value.message.split()) & {"Bytes", "Transferred:", "Authenticated"}, caught.value.message
