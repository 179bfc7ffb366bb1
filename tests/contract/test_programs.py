"""One way to run a program in a node, in a temporary container and on a host, for all three and by each carrier."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.support.carriers import Client
from tests.support.programs import containers, made, processes, python_image, soon
from tests.support.sshd import Sshd
from tests.support.waiting import until
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.docker.temporary import TemporaryContainer
from vllm_cluster.kernel.errors import CommandFailed, HostError, TimedOut
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.hosts.on_host.bounded import HUNG_UP, LATE
from vllm_cluster.kernel.hosts.program import (
    MAX_LINE,
    InNode,
    OnHost,
    Place,
    RemoteProgram,
    RunningProgram,
    run_program,
    start,
)
from vllm_cluster.kernel.plan.identity import Owner
from vllm_cluster.kernel.transport import Kind
from vllm_cluster.kernel.transport.base import Transport

CLUSTER = f"contract{secrets.token_hex(2)}"
ECHO = """
import json, sys
print("Welcome to this image!")
print("[1]")
for line in sys.stdin:
    print(json.dumps({"heard": json.loads(line), "words": sys.argv[1:-1]}))
    if "end" in line:
        print("last words", file=sys.stderr)
        sys.exit(7)
"""
SLEEP = "import time; print('{}'); time.sleep(600)"
NODE = "import time; time.sleep(86400)"
SPIN = "print('{}')\nwhile True: pass"
FLOOD = "while True: print('x' * 1000)"
LONG = "import sys\nwhile True: sys.stdout.write('x' * 1000)"


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """An image that has Python, and a container of it that runs, as a node does."""
    name = f"vcluster-contract:{CLUSTER}"
    done = subprocess.run(["docker", "import", "-", name], input=python_image(), capture_output=True, check=True)
    node = ["docker", "run", "--detach", "--init", "--network", "none", "--name", CLUSTER, name, "python3", "-c", NODE]
    subprocess.run(node, check=True, stdout=subprocess.DEVNULL)
    yield name
    subprocess.run(["docker", "rm", "-f", CLUSTER], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["docker", "rmi", done.stdout.decode().strip()], check=True, stdout=subprocess.DEVNULL)


@dataclass
class Somewhere:
    """A place over a carrier; the token marks the processes of this test."""

    connection: HostConnection
    where: str
    image: str
    token: str

    def made(self, source: str, *words: str, seconds: float = 300) -> tuple[RemoteProgram, Place]:
        """A program for this place."""
        return made(self.where, self.image, CLUSTER, source, *words, self.token, seconds=seconds)

    def start(self, source: str, **limits: float) -> RunningProgram:
        """A program, started."""
        return start(self.connection, *self.made(source, **limits), soon())

    def gone(self) -> bool:
        """Whether nothing of it is left: no process, and no container."""
        return not processes(self.token) and not containers(CLUSTER)


@pytest.fixture(params=["node", "container", "host"])
def place(request: pytest.FixtureRequest, host: Transport, image: str) -> Iterator[Somewhere]:
    """Each place, where nothing stays."""
    connection = HostConnection("gpu1", host)
    connection.may_change = True
    connection.open_docker("1.41")
    there = Somewhere(connection, request.param, image, secrets.token_hex(8))
    yield there
    until(there.gone)
    connection.docker.close()


def test_messages_go_both_ways_and_the_end_is_known(place: Somewhere) -> None:
    odd = ("", " a  b ", "'\"$(x)`\\", "-c", "é\n!", "{}")
    with start(place.connection, *place.made(ECHO, *odd), soon()) as running:
        running.send({"secret": "s3cr3t"})
        assert running.next(soon()) == {"heard": {"secret": "s3cr3t"}, "words": list(odd)}
        assert processes(place.token)
        running.send({"end": True})
        ended = running.finish(soon())
    assert (ended.code, len(ended.messages), ended.stderr.strip()) == (7, 1, "last words")
    assert ended.printed.splitlines() == ["Welcome to this image!", "[1]"]


def test_the_first_message_is_a_place_for_a_secret(place: Somewhere) -> None:
    source = "import json, sys\nopen('/proc/self/cmdline').read().index('s3cr3t') if 's3cr3t' in str(sys.argv) else 0\n"
    source += "print(json.dumps({'has': json.loads(sys.stdin.readline())['key'] == 's3cr3t'}))"
    program, where = place.made(source)
    assert run_program(place.connection, program, where, soon(), {"key": "s3cr3t"}).messages == ({"has": True},)


@pytest.mark.parametrize("source", [SLEEP, SPIN], ids=["sleeps", "spins"])
def test_it_ends_with_its_input(place: Somewhere, source: str) -> None:
    running = place.start(source)
    running.next(soon())
    running.end(soon())
    assert running.code == HUNG_UP
    # docker goes after its container; a process that docker exec started ends by itself.
    until(place.gone)


def test_it_ends_after_its_seconds(place: Somewhere) -> None:
    with place.start(SLEEP, seconds=1) as running:
        assert running.finish(soon()).code == LATE


@pytest.mark.parametrize("source", [FLOOD, LONG], ids=["lines", "one line"])
def test_what_floods_is_ended(place: Somewhere, source: str) -> None:
    with place.start(source) as running, pytest.raises(HostError, match="gpu1: its program printed too much"):
        running.next(soon())
    until(place.gone)


def test_silence_ends_with_the_deadline(place: Somewhere) -> None:
    with place.start(SLEEP) as running:
        running.next(soon())
        with pytest.raises(TimedOut):
            running.next(Deadline.after(0.2))


def test_a_line_may_be_as_long_as_its_limit(place: Somewhere) -> None:
    text = "x" * (2 * MAX_LINE)
    program, where = place.made(f"print('{{\"text\": \"' + 'x' * {len(text)} + '\"}}')")
    assert run_program(place.connection, replace(program, max_line=4 * MAX_LINE), where, soon()).messages == (
        {"text": text},
    )


@pytest.mark.parametrize("source", [SLEEP, SPIN], ids=["sleeps", "spins"])
def test_nothing_is_left_of_a_laptop_that_is_killed(
    place: Somewhere, source: str, laptop: Callable[[str, str, str], subprocess.Popen[str]]
) -> None:
    killed = laptop(place.where, source, place.token)
    assert killed.stdout
    assert killed.stdout.readline() == "started\n"
    assert processes(place.token)
    killed.send_signal(signal.SIGKILL)
    until(place.gone)


@pytest.fixture
def laptop(
    request: pytest.FixtureRequest, image: str, shared_server: Sshd, user_key: Path, tmp_path: Path
) -> Iterator[Callable[[str, str, str], subprocess.Popen[str]]]:
    """Another laptop that starts a program by the carrier of this test."""
    kind: Kind = request.node.callspec.params["host"]
    client = Client(tmp_path, user_key)
    client.add("shared", shared_server)
    begun: list[subprocess.Popen[str]] = []

    def begin(where: str, source: str, token: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "tests.support.programs", kind, str(client.config), where]
        argv += [image, CLUSTER, source, token]
        begun.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


def test_what_docker_does_not_start_is_an_error_in_its_words(host: Transport, image: str) -> None:
    connection = HostConnection("gpu1", host)
    connection.may_change = True
    connection.open_docker("1.41")
    program, _ = made("node", image, CLUSTER, ECHO)
    with pytest.raises(CommandFailed, match="gpu1: contract: No such container: no-such"):
        run_program(connection, program, InNode("no-such"), soon())
    bare = TemporaryContainer(Owner(CLUSTER, None), "probe", image)
    with pytest.raises(CommandFailed, match=r"gpu1: contract: .*no-such-command"):
        run_program(connection, RemoteProgram("contract", ("no-such-command",), 60.0), bare, soon())
    assert not containers(CLUSTER)
    ended = run_program(connection, RemoteProgram("contract", ("no-such-command",), 60.0), OnHost(), soon())
    assert ended.code == 127
    assert "no-such-command" in ended.text
    connection.docker.close()


def test_a_program_that_changes_a_host_needs_the_lease(host: Transport, image: str) -> None:
    connection = HostConnection("gpu1", host)
    program, _ = made("host", image, CLUSTER, json.dumps({}))
    with pytest.raises(RuntimeError, match="without the lease"):
        start(connection, replace(program, changes=True), OnHost(), soon())
