"""Login shells as they are: however they quote, print or refuse, a command works or one error has the reason."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from tests.support import world
from tests.support.carriers import REMOTE, Client
from tests.support.figures import tallied
from tests.support.login_shells import SHELLS, STARTUP, forced, login_shell
from tests.support.sshd import Sshd
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import HostError, Locked, ShellUnusable
from vllm_cluster.kernel.facts import parse
from vllm_cluster.kernel.hosts.connection import CONNECT_SECONDS, HostConnection
from vllm_cluster.kernel.lease.lease import Lease
from vllm_cluster.kernel.transport import Kind, ssh_master
from vllm_cluster.kernel.transport.base import Target, Transport
from vllm_cluster.serving.cluster.down import down
from vllm_cluster.serving.cluster.up import up
from vllm_cluster.serving.status.status import status

pytestmark = pytest.mark.promise("P39")
Connect = Callable[[Target, Kind], Transport]
WORDS = (
    "two\\\\", "a'b", 'a"b', "!x !! !$", "a\nb\n", "\n", "", "-n", "$HOME `id` $(id)", "é💥\u202e", "\\0101 \\c %s %b",
    "{a,b} * ~ ? [x] # ; & | < > ( )", "^a^b^", "x" * 100_000, "\x01\t\r\x7f",
)  # fmt: skip
LOUD = "echo 'Welcome to gpu1! 3 updates are available'; sh -c 'echo stty: not a terminal >&2'"


def soon() -> Deadline:
    return Deadline.after(20)


@pytest.fixture
def started() -> Iterator[list[Sshd]]:
    """Servers that end with the test."""
    servers: list[Sshd] = []
    yield servers
    for server in servers:
        server.stop()


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
    host.open_engine("1.41")
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


def refused(connect: Connect, target: Target, kind: Kind, call: Callable[[Transport], object]) -> ShellUnusable:
    """The error of the connection or, at the latest, of the first call on it, within the time of a connection."""
    began = time.monotonic()
    with pytest.raises(HostError) as caught:
        call(connect(target, kind))
    assert isinstance(caught.value, ShellUnusable), caught.value
    assert time.monotonic() - began < CONNECT_SECONDS
    assert caught.value.exit_code == 3
    assert caught.value.message.startswith("gpu1: login shell: ")
    return caught.value


def first_words(host: Transport) -> object:
    return host.run(["true"], soon())


def first_stream(host: Transport) -> object:
    stream = host.open_stream(["docker", "system", "dial-stdio"], soon())
    stream.settimeout(10)
    return stream.recv(100)


def lease(host: Transport) -> None:
    link = HostConnection("gpu1", host)
    link.open_engine("1.41")
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


GUARDS = {
    "bash": ("cat > /dev/null", "[[ $- == *i* ]] || return", "~/.bashrc"),
    "zsh": ("cat > /dev/null", "[[ -o interactive ]] || return", "~/.zshenv"),
    "fish": ("cat > /dev/null", "status is-interactive; or return", "~/.config/fish/config.fish"),
    "tcsh": ("cat > /dev/null", "if (! $?prompt) exit", "~/.tcshrc"),
    "bsd-csh": ("cat > /dev/null", "if (! $?prompt) exit", "~/.cshrc"),
}


@pytest.mark.parametrize("shell", GUARDS)
def test_a_start_up_file_that_takes_the_input_is_reported_and_its_remedy_works(
    *, kind: Kind, shell: str, client: Client, connect: Connect, tmp_path: Path, started: list[Sshd]
) -> None:
    eats, guard, file = GUARDS[shell]
    started.append(login_shell(tmp_path / "bad", client.key, shell, eats))
    client.add("bad", started[-1])
    error = refused(connect, client.target("bad"), kind, first_words)
    assert f"/usr/bin/{shell} reads the input of a command" in error.message
    assert error.hint and guard in error.hint and file in error.hint
    started.append(login_shell(tmp_path / "good", client.key, shell, f"{guard}\n{eats}"))
    client.add("good", started[-1])
    assert connect(client.target("good"), kind).run(["echo", "x"], soon()).stdout == b"x\n"


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_a_start_up_file_that_does_not_end_is_reported(
    *, kind: Kind, shell: str, client: Client, connect: Connect, tmp_path: Path, started: list[Sshd],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(ssh_master, "STEP_SECONDS", 3.0)
    started.append(login_shell(tmp_path / "bad", client.key, shell, "sleep 60"))
    client.add("bad", started[-1])
    error = refused(connect, client.target("bad"), kind, lambda host: host.run(["true"], Deadline.after(5)))
    assert "it began no command within" in error.message
    assert error.hint and error.hint.startswith(f"this must print ok at once: ssh -F {client.config} bad 'echo ok'\n")


@pytest.mark.parametrize("kind", REMOTE)
def test_a_start_up_file_that_becomes_another_shell_is_reported(
    kind: Kind, client: Client, connect: Connect, tmp_path: Path, started: list[Sshd]
) -> None:
    started.append(login_shell(tmp_path / "h", client.key, "bash", "exec fish"))
    client.add("h", started[0])
    error = refused(connect, client.target("h"), kind, first_words)
    assert error.hint and f"ssh -F {client.config} h 'echo ok'" in error.hint
    assert "start-up files" in error.hint


def test_every_verb_names_the_shell(kind: Kind, client: Client, tmp_path: Path, started: list[Sshd]) -> None:
    started.append(forced(tmp_path / "sshd", client.key, "exec /usr/sbin/nologin"))
    client.add("gpu1", started[0])
    inventory = world.inventory(1, ssh={"config": str(client.config), "transport": kind})
    (row,) = status(inventory, lambda _: None).hosts
    assert (row.state, row.gpus) == ("shell-error", None)
    assert "this account runs no commands" in row.problem and "sudo chsh -s /bin/bash" in row.fix
    for call in (
        lambda: up(inventory, lambda _: None, confirm=lambda _: True, cache=tmp_path),
        lambda: down(inventory, lambda _: None, confirm=lambda _: True),
    ):
        with pytest.raises(ShellUnusable) as caught:
            call()
        assert caught.value.exit_code == 3
