"""Login shells as they are: however they quote, print or refuse, a command works or one error has the reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest

from tests.support import world
from tests.support.carriers import Client
from tests.support.figures import tallied
from tests.support.login_shells import SHELLS, STARTUP, Connect, first_words, forced, login_shell, refused, soon
from tests.support.sshd import Sshd
from vllm_cluster.kernel.errors import Locked, ShellUnusable
from vllm_cluster.kernel.facts import parse
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.lease.lease import Lease
from vllm_cluster.kernel.transport import Kind
from vllm_cluster.kernel.transport.base import Transport
from vllm_cluster.serving.cluster.down import remove_cluster
from vllm_cluster.serving.cluster.up import bring_up
from vllm_cluster.serving.status.status import look_at_cluster

pytestmark = pytest.mark.promise("P39")
WORDS = (
    "two\\\\", "a'b", 'a"b', "!x !! !$", "a\nb\n", "\n", "", "-n", "$HOME `id` $(id)", "é💥\u202e", "\\0101 \\c %s %b",
    "{a,b} * ~ ? [x] # ; & | < > ( )", "^a^b^", "x" * 100_000, "\x01\t\r\x7f",
)  # fmt: skip
LOUD = "echo 'Welcome to gpu1! 3 updates are available'; sh -c 'echo stty: not a terminal >&2'"


def everything(host: Transport, folder: Path) -> None:
    """All that is ever done over a connection: words, facts, a stream, the lease."""
    result = host.run(["printf", "%s\\0", *WORDS], soon())
    assert result.stdout.split(b"\0")[:-1] == [word.encode() for word in WORDS]
    assert result.stderr == b""
    script = files("vllm_cluster.kernel.facts").joinpath("facts.sh").read_bytes()
    facts = parse.facts("gpu1", host.run(["sh", "-s", "--", "127.0.0.1", "/"], soon(), stdin=script).text)
    assert facts.hostname
    stream = host.open_stream(["sh", "-c", "echo note >&2\ncat"], soon())
    stream.settimeout(10)
    stream.sendall(data := bytes(range(256)) * 100)
    stream.shutdown_write()
    assert b"".join(iter(lambda: stream.recv(1000), b"")) == data
    assert stream.stderr_tail() == "note"
    stream.close()
    leased(HostConnection("gpu1", host), folder)


def leased(host: HostConnection, parent: Path) -> None:
    """The lease excludes a second one, and is free again afterwards."""
    host.open_docker("1.41")
    for _ in range(2):
        with Lease([host], "lab", "up", parent=str(parent)) as first:
            first.acquire()
            assert first.send_heartbeat()
            first.check()
            with pytest.raises(Locked, match=r"vcluster up"):
                Lease([host], "lab", "down", parent=str(parent)).acquire()


@pytest.mark.parametrize("shell", SHELLS)
def test_every_login_shell_does_everything(
    *, kind: Kind, shell: str, client: Client, connect: Connect, tmp_path: Path, started: list[Sshd]
) -> None:
    """Also one that prints before each command, where it reads a file before."""
    loud = LOUD if shell in STARTUP else ""
    with tallied("P39", f"{shell} as the login shell, over {kind}", "ways of its start-up file") as cases:
        for name, startup in {"quiet": "", "prints": loud}.items():
            server = login_shell(tmp_path / name, client.key, shell, startup)
            started.append(server)
            client.add(name, server)
            everything(connect(client.target(name), kind), tmp_path)
            cases[name] = True


REFUSALS = {
    "nologin": ("exec /usr/sbin/nologin", r"this account runs no commands: it printed 'This account is currently not"),
    "rbash": ('exec /bin/rbash -c "$SSH_ORIGINAL_COMMAND"', r"it is restricted: it printed .*restricted"),
    "sftp": ("internal-sftp", r"something else runs instead of the command"),
    "a menu": ("echo 'Pick a job: 1'", r"something else runs instead of the command: it printed 'Pick a job: 1'"),
    "an echo": ("cat", r"something else runs instead of the command"),
    "nothing": ("true", r"something else runs instead of the command$"),
}


def first_stream(host: Transport) -> object:
    stream = host.open_stream(["docker", "system", "dial-stdio"], soon())
    stream.settimeout(10)
    return stream.recv(100)


def lease(host: Transport) -> None:
    link = HostConnection("gpu1", host)
    link.open_docker("1.41")
    Lease([link], "lab", "down").acquire()


@pytest.mark.parametrize("call", [first_words, first_stream, lease])
@pytest.mark.parametrize("what", REFUSALS)
def test_an_account_that_runs_no_commands_is_reported(
    *, kind: Kind, what: str, call: Callable[[Transport], object], client: Client, connect: Connect, tmp_path: Path,
    started: list[Sshd],
) -> None:  # fmt: skip
    command, told = REFUSALS[what]
    started.append(forced(tmp_path / "sshd", client.key, command))
    client.add("h", started[0])
    with tallied("P39", f"{what}, {call.__name__}, over {kind}", "named, exit 3") as cases:
        error = refused(connect, client.target("h"), kind, call)
        assert error.hint
        cases[what] = True
    assert re.search(told, error.message), error.message


def test_every_verb_names_the_shell(kind: Kind, client: Client, tmp_path: Path, started: list[Sshd]) -> None:
    started.append(forced(tmp_path / "sshd", client.key, "exec /usr/sbin/nologin"))
    client.add("gpu1", started[0])
    inventory = world.inventory(1, ssh={"config": str(client.config), "transport": kind})
    (row,) = look_at_cluster(inventory, lambda _: None).hosts
    assert (row.state, row.gpus) == ("shell-error", None)
    assert "this account runs no commands" in row.problem and "sudo chsh -s /bin/bash" in row.fix
    for call in (
        lambda: bring_up(inventory, lambda _: None, confirm=lambda _: True, cache=tmp_path),
        lambda: remove_cluster(inventory, lambda _: None, confirm=lambda _: True),
    ):
        with pytest.raises(ShellUnusable) as caught:
            call()
        assert caught.value.exit_code == 3
