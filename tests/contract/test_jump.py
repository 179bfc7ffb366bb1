"""Hosts behind other hosts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.carriers import Client, make
from tests.support.login_shells import forced
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.sshd import Sshd
from tests.support.waiting import until
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import HostKeyRejected, Unreachable, UsageError, VclusterError
from vllm_cluster.kernel.transport import Kind
from vllm_cluster.kernel.transport import make_transport as carrier
from vllm_cluster.kernel.transport.base import Target, Transport
from vllm_cluster.kernel.transport.jumps import Jumps

Connect = Callable[[Target, Kind], Transport]


@pytest.fixture(scope="module")
def bastion(tmp_path_factory: pytest.TempPathFactory, user_key: Path) -> Iterator[Sshd]:
    server = Sshd(tmp_path_factory.mktemp("bastion"), user_key).start()
    yield server
    server.stop()


@pytest.fixture
def behind(client: Client, shared_server: Sshd, bastion: Sshd) -> Client:
    """A client that knows a host and, by another name, its bastion."""
    client.add("h", shared_server)
    client.add("bastion", bastion)
    return client


def passed(bastion: Sshd) -> int:
    """How many logins the bastion has seen."""
    return (bastion.folder / "log").read_text().count("Accepted publickey")


@pytest.mark.promise("P39")
def test_a_jump_host_needs_no_shell(
    *, kind: Kind, client: Client, shared_server: Sshd, connect: Connect, tmp_path: Path
) -> None:
    """A bastion's accounts often run no commands: it only forwards."""
    server = forced(tmp_path / "bastion", client.key, "exec /usr/sbin/nologin")
    try:
        client.add("h", shared_server)
        client.add("bastion", server)
        transport = connect(client.target("h", jump="bastion"), kind)
        assert transport.run(["echo", "x"], Deadline.after(10)).stdout == b"x\n"
        transport.close()
    finally:
        server.stop()


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.support.carriers import make
from vllm_cluster.kernel.transport.base import Deadline, Target

make(Target("gpu1", "h", config=Path(sys.argv[1]), jump="bastion"), sys.argv[2]).connect(Deadline.after(20))
print("connected", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_program_that_is_killed_leaves_no_connection_to_a_jump_host(
    kind: Kind, behind: Client, bastion: Sshd
) -> None:
    before = bastion.connections()
    argv = [sys.executable, "-c", KILLED, str(behind.config), kind]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.stdout == "connected\n", done.stderr
    until(lambda: len(bastion.connections()) <= len(before), 10)


@pytest.mark.parametrize("where", ["inventory", "ssh_config", "spelled out"])
def test_a_jump_host_is_passed(
    *, kind: Kind, behind: Client, shared_server: Sshd, bastion: Sshd, connect: Connect, where: str
) -> None:
    before = passed(bastion)
    target = behind.target("h")
    if where == "inventory":
        target = behind.target("h", jump="bastion")
    elif where == "ssh_config":
        behind.hosts = ["Host h", "ProxyJump bastion", *behind.hosts]
        behind.write()
    else:
        target = behind.target("h", jump=f"127.0.0.1:{bastion.port}")
    transport = connect(target, kind)
    assert transport.run(["echo", "x"], Deadline.after(10)).stdout == b"x\n"
    data = bytes(8 << 20)
    assert transport.run(["cat"], Deadline.after(30), stdin=data, most=len(data)).stdout == data
    assert passed(bastion) == before + 1


def test_a_chain_of_jump_hosts_is_passed(
    kind: Kind, behind: Client, bastion: Sshd, connect: Connect, tmp_path: Path
) -> None:
    second = Sshd(tmp_path / "second", behind.key).start()
    try:
        behind.add("second", second)
        before = passed(bastion), passed(second)
        transport = connect(behind.target("h", jump="bastion,second"), kind)
        assert transport.run(["echo", "x"], Deadline.after(10)).stdout == b"x\n"
        assert (passed(bastion), passed(second)) == (before[0] + 1, before[1] + 1)
    finally:
        second.stop()


def test_hosts_share_the_connection_to_their_jump_host(
    kind: Kind, behind: Client, shared_server: Sshd, bastion: Sshd
) -> None:
    before, jumps = passed(bastion), Jumps()
    hosts = [carrier(behind.target("h", name=f"gpu{n}", jump="bastion"), kind, jumps) for n in range(8)]
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda host: host.connect(Deadline.after(20)), hosts))
        hosts[0].close()
        assert hosts[1].run(["echo", "x"], Deadline.after(10)).stdout == b"x\n"
        assert passed(bastion) == before + 1
        bastion.drop_connections()
        error = None
        while not isinstance(error, Unreachable):
            error = caught(lambda: hosts[1].run(["true"], Deadline.after(10)))
        hosts[2].close()
        hosts[2].connect(Deadline.after(20))
        assert passed(bastion) == before + 2, "a jump host whose connection broke is connected to anew"
    finally:
        for host in hosts:
            host.close()
        jumps.close()
    until = time.monotonic() + 5
    while bastion.connections():
        assert time.monotonic() < until, "the connection to the jump host stayed"
        time.sleep(0.05)


def test_a_jump_host_that_is_silent_is_asked_once_for_all(kind: Kind, behind: Client) -> None:
    jumps = Jumps()
    with socket.create_server(("127.0.0.1", 0), backlog=8) as mute:
        jump = f"127.0.0.1:{mute.getsockname()[1]}"
        hosts = [carrier(behind.target("h", name=f"gpu{n}", jump=jump), kind, jumps) for n in range(4)]
        begun = time.monotonic()
        errors = [caught(lambda host=host: host.connect(Deadline.after(15))) for host in hosts]  # type: ignore[misc]
        assert time.monotonic() - begun < 16
    for host, error in zip(hosts, errors, strict=True):
        assert isinstance(error, Unreachable)
        assert error.message.startswith(f"{host.host}: no answer from {jump}")


def caught(call: Callable[[], object]) -> VclusterError | None:
    try:
        call()
    except VclusterError as error:
        return error
    return None


def test_a_proxy_command_is_used(kind: Kind, behind: Client, bastion: Sshd, connect: Connect) -> None:
    before = passed(bastion)
    command = f"ssh -F {behind.config} -W %h:%p bastion"
    behind.hosts = ["Host h", f"ProxyCommand {command}", *behind.hosts]
    behind.write()
    transport = connect(behind.target("h"), kind)
    assert transport.run(["echo", "x"], Deadline.after(10)).stdout == b"x\n"
    assert passed(bastion) == before + 1


def fails(target: Target, kind: Kind) -> Unreachable:
    transport = make(target, kind)
    try:
        with pytest.raises(Unreachable) as caught:
            transport.connect(Deadline.after(15))
    finally:
        transport.close()
    return caught.value


def test_the_jump_host_s_key_is_checked_too(kind: Kind, behind: Client, shared_server: Sshd, bastion: Sshd) -> None:
    behind.known.write_text(shared_server.known_line())
    error = fails(behind.target("h", jump="bastion"), kind)
    assert isinstance(error, HostKeyRejected)
    assert f"127.0.0.1:{bastion.port} is not known" in error.message


def test_the_key_behind_the_jump_host_is_checked_too(
    kind: Kind, behind: Client, shared_server: Sshd, bastion: Sshd
) -> None:
    behind.known.write_text(bastion.known_line())
    error = fails(behind.target("h", jump="bastion"), kind)
    assert isinstance(error, HostKeyRejected)
    assert f"127.0.0.1:{shared_server.port} is not known" in error.message


def test_new_keys_are_accepted_on_every_hop(
    kind: Kind, behind: Client, shared_server: Sshd, bastion: Sshd, connect: Connect
) -> None:
    behind.known.write_text("")
    behind.write("Host *", "HashKnownHosts no")
    connect(behind.target("h", jump="bastion", accept_new_keys=True), kind)
    assert set(behind.known.read_text().splitlines(keepends=True)) == {shared_server.known_line(), bastion.known_line()}


def test_a_host_that_the_jump_host_cannot_reach_is_reported(kind: Kind, behind: Client, bastion: Sshd) -> None:
    port = free_port()
    error = fails(behind.target("h", jump="bastion", port=port), kind)
    assert f"cannot reach 127.0.0.1:{port} through " in error.message and f":{bastion.port}: " in error.message


def test_a_jump_host_that_is_down_is_reported(kind: Kind, behind: Client) -> None:
    port = free_port()
    error = fails(behind.target("h", jump=f"127.0.0.1:{port}"), kind)
    assert f"nothing listens on 127.0.0.1:{port}" in error.message


def test_a_proxy_command_that_fails_is_reported(kind: Kind, behind: Client) -> None:
    behind.hosts = ["Host h", "ProxyCommand false", *behind.hosts]
    behind.write()
    assert "through false: " in fails(behind.target("h"), kind).message


def test_jump_hosts_in_a_circle_are_refused(kind: Kind, behind: Client) -> None:
    behind.write("Host *", "ProxyJump bastion")
    transport = make(behind.target("h"), kind)
    with pytest.raises(UsageError, match="circle"):
        transport.connect(Deadline.after(10))
    transport.close()
