"""Nothing waits without a limit: what the code has of it, and a sshd that is stopped."""

from __future__ import annotations

import ast
import inspect
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.carriers import Client, make
from tests.support.figures import record
from tests.support.modules import MODULES, room
from tests.support.sshd import Sshd, descendants, process_name, signal_pid
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import ConnectionLost, TimedOut
from vllm_cluster.kernel.transport import Kind
from vllm_cluster.kernel.transport.base import Transport
from vllm_cluster.kernel.transport.fabric import FabricTransport
from vllm_cluster.kernel.transport.local import LocalTransport
from vllm_cluster.kernel.transport.openssh import OpenSshTransport

pytestmark = pytest.mark.alone

GRACE = 5.0
WAITS = ("join", "wait", "result", "get", "acquire", "communicate")
STARTS = ("run", "check_output", "check_call", "call", "create_connection", "urlopen")
# Each has its end elsewhere: a future that is done, a host's work whose calls have deadlines, a tunnel that lasts, a
# command that the user gave to be run, requests of a batch that each have a limit for their whole answer, a
# front that serves until a signal.
ENDS_ELSEWHERE = {
    "kernel/hosts/connection.py: future.result()",
    "kernel/transport/jumps.py: opened.result()",
    "kernel/transport/ssh_answers.py: future.result()",
    "features/pull/action.py: proved.result()",
    "vcluster_sandbox/golden.py: part.result()",
    "kernel/transport/jumps.py: last.result()",
    "kernel/transport/jumps.py: future.result()",
    "kernel/transport/forward.py: self._thread.join()",
    "kernel/transport/forward.py: back.join()",
    "kernel/transport/forward.py: sock.settimeout(None)",
    "features/batch/on_head/runner.py: self._ended.wait()",
    "serving/node/front.py: over.wait()",
    # A lease without a wait is tried once.
    "features/pull/models_remove.py: lease.acquire()",
    "serving/endpoint/rotate.py: lease.acquire()",
    "features/images/action.py: lease.acquire()",
    # Slurm's time limit ends it.
    "features/slurm/on_host/step.py: process.wait()",
}


@pytest.mark.promise("P18")
@pytest.mark.parametrize("carrier", [Transport, FabricTransport, OpenSshTransport, LocalTransport])
@pytest.mark.parametrize("call", ["connect", "run", "open_stream"])
def test_no_remote_call_can_be_made_without_a_deadline(carrier: type[object], call: str) -> None:
    deadline = inspect.signature(getattr(carrier, call)).parameters["deadline"]
    assert (deadline.annotation, deadline.default) == ("Deadline", inspect.Parameter.empty)


def unlimited(node: ast.Call) -> bool:
    """Whether a call waits for as long as it takes."""
    if any(word.arg in ("timeout", "deadline") and ast.unparse(word.value) == "None" for word in node.keywords):
        return True
    if not isinstance(node.func, ast.Attribute):
        return False
    name, limits = node.func.attr, {word.arg for word in node.keywords} & {"timeout", "blocking"}
    if name in WAITS:
        return not node.args and not limits
    if name in STARTS and ast.unparse(node.func.value) in ("subprocess", "socket", "request"):
        return not limits and not (name == "create_connection" and len(node.args) > 1)
    return name == "settimeout" and ast.unparse(node.args[0]) == "None"


def unlimited_in(tree: ast.AST) -> Iterator[str]:
    """Every call of a module that waits for as long as it takes; what `asyncio.wait_for` is given has its limit."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    limited = [call.args[0] for call in calls if ast.unparse(call.func) == "asyncio.wait_for" and len(call.args) > 1]
    yield from (ast.unparse(call) for call in calls if call not in limited and unlimited(call))


@pytest.mark.promise("P18")
def test_no_wait_is_without_a_limit() -> None:
    found = {f"{room(path)}: {wait}" for path in MODULES for wait in unlimited_in(ast.parse(path.read_text()))}
    record("P18", "waits without a limit in the code", f"{len(found - ENDS_ELSEWHERE)}", found <= ENDS_ELSEWHERE)
    assert found == ENDS_ELSEWHERE


# Who asks a host's Docker, itself or through what it is given.
ASKED = ("docker", "volumes", "streams", "temporary", "_docker()", "_calls")
NO_CALLS = ("after", "items", "put")
# Here a host cannot make the list long: files of one's own, tries, what two names mean.
SHORT_LISTS = {
    "features/pull/local_folder.py: _send_group",
    "kernel/docker/client.py: self._calls.stream",
    "kernel/docker/streams.py: self._calls.ask",
    "kernel/images/host_images.py: find_held_image",
    "kernel/node/secret_files.py: docker.read_file",
}


def unlimited_lists(tree: ast.AST) -> Iterator[str]:
    """Every call to a host's Docker in a loop that has no deadline of before the loop, nor the time for all of it."""
    for node in ast.walk(tree):
        body: Sequence[ast.AST] = ()
        match node:
            case ast.For():
                body = node.body
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                body = (node.elt,)
            case ast.DictComp():
                body = (node.key, node.value)
        for call in (one for part in body for one in ast.walk(part) if isinstance(one, ast.Call)):
            given, parts = [*call.args, *(word.value for word in call.keywords)], ast.unparse(call.func).split(".")
            asks = len(parts) > 1 and parts[-2] in ASKED
            hands = any(isinstance(one, ast.Name | ast.Attribute) and is_way(ast.unparse(one)) for one in given)
            if (
                (asks or hands)
                and parts[-1] not in NO_CALLS
                and not {"deadline", "time"} & set(map(ast.unparse, given))
            ):
                yield ast.unparse(call.func)


def is_way(name: str) -> bool:
    """Whether this is what a host's Docker is asked through."""
    return name.rsplit(".", maxsplit=1)[-1] in ("docker", "connection")


# fault: serving/cluster/down.py: docker.volumes.remove(volume, deadline) → docker.volumes.remove(volume)
def test_no_list_of_a_host_is_worked_through_without_a_limit_for_all_of_it() -> None:
    """With one for each entry, a host decides how long that takes by how many it lists."""
    found = {f"{room(path)}: {call}" for path in MODULES for call in unlimited_lists(ast.parse(path.read_text()))}
    assert found == SHORT_LISTS


@pytest.fixture
def server(key: Path, tmp_path: Path) -> Iterator[Sshd]:
    """A server for one test."""
    server = Sshd(tmp_path / "sshd", key).start()
    yield server
    server.stop()


@pytest.mark.promise("P18")
@pytest.mark.parametrize("kind", ["fabric", "openssh"])
def test_a_stopped_sshd_holds_nothing_beyond_deadline_and_grace(
    kind: Kind, server: Sshd, key: Path, tmp_path: Path
) -> None:
    client = Client(tmp_path / "client", key)
    client.folder.mkdir()
    client.add("h", server)
    transport, mark, limit = make(client.target("h"), kind), tmp_path / "mark", 2.0
    transport.connect(Deadline.after(10))
    # The command itself stops its sshd, so that no answer can come between.
    pids = " ".join(map(str, server.connections()))
    begun = time.monotonic()
    with pytest.raises((TimedOut, ConnectionLost)):
        transport.run(["sh", "-c", f"touch {mark}; kill -STOP {pids}; sleep 60"], Deadline.after(limit))
    here = time.monotonic() - begun
    assert mark.exists()
    while any(process_name(pid) == "sleep" for pid in server.children()) and time.monotonic() - begun < 30:
        time.sleep(0.05)
    there = time.monotonic() - begun
    transport.close()
    for pid in descendants(server.process.pid) if server.process else ():
        signal_pid(pid, signal.SIGCONT)
    passed = max(here, there) < limit + GRACE
    figure = f"deadline {limit:.0f} s: here after {here:.1f} s, the remote command after {there:.1f} s"
    record("P18", f"SIGSTOP of sshd, {kind}", figure, passed)
    assert passed, figure
