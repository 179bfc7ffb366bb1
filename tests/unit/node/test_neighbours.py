"""Other users of a host: who listens first at a port of it does not get the key that is shown there."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.fronted import Fronted
from vllm_cluster.kernel.hosts.program import RemoteProgram, python
from vllm_cluster.serving.node import proc
from vllm_cluster.serving.node.api import QUESTIONS, Api
from vllm_cluster.wire.keys import NEEDED
from vllm_cluster.wire.listeners import is_own_listener


@pytest.fixture(params=["127.0.0.1", "::1"])
def server(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """A program of this user that listens."""
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with closing(socket.create_server((request.param, 0), family=family)) as made:
        yield made


def be_other_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all that listens be of another user."""
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)


# fault: wire/listeners.py: and row[7] == user →
# fault: wire/listeners.py: row[3] == _LISTEN and → True and
def test_what_another_user_listens_at_is_not_own(server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    address, port = server.getsockname()[:2]
    assert is_own_listener(address, port)
    assert not is_own_listener("127.0.0.2", port)
    with closing(socket.create_connection((address, port))) as client:
        assert not is_own_listener(*client.getsockname()[:2])
    be_other_user(monkeypatch)
    assert not is_own_listener(address, port)


def answer(server: socket.socket, seen: list[bytes]) -> None:
    """Answer one request, and keep what it was."""
    with server.accept()[0] as client:
        seen.append(client.recv(4096))
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


# fault: serving/node/api.py: if self._key_file and not is_own_listener(self._host, self._port): → if False:
def test_the_key_is_shown_to_no_program_of_another_user(
    server: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port of vLLM is on its command line, and vLLM takes minutes until it listens there."""
    (tmp_path / "key").write_text("sk-canary")
    address, port = server.getsockname()[:2]
    api = Api(address, port, str(tmp_path / "key"))
    server.settimeout(0.2)
    with monkeypatch.context() as patch:
        be_other_user(patch)
        assert not api.healthy(0.1)
        assert api.counts(0.1) is None
        with pytest.raises(ConnectionRefusedError, match="no program of this user listens at"):
            api.ask(QUESTIONS[0], "org/m", 0.1)
    with pytest.raises(TimeoutError):
        server.accept()
    server.settimeout(10)
    seen: list[bytes] = []
    answering = threading.Thread(target=answer, args=(server, seen))
    answering.start()
    assert api.healthy(10)
    answering.join()
    assert b"Authorization: Bearer sk-canary" in seen[0]


# Before all of the front's own code: it is another user than all that listens, for as long as this file is there.
OTHER = "import os\nme = os.getuid()\nos.getuid = lambda: me + os.path.exists({!r})\n"


# fault: serving/node/front_replica.py: if replica.key_file and is_here(replica.host) and not is_own_listener( → if not str(
# fault: serving/node/front_replica.py: guard.on_connection_create_start.append(_ensure_own) → pass
def test_the_front_connects_to_no_program_of_another_user_where_a_replica_has_ended(tmp_path: Path) -> None:
    """It would get the key of all replicas and the prompts until the node's program has seen the end."""
    there = tmp_path / "other"
    (tmp_path / "first").mkdir()
    (tmp_path / "first/sitecustomize.py").write_text(OTHER.format(str(there)))
    there.touch()
    with closing(Fronted(tmp_path)) as front:
        front.replica("a")
        front.write({"m": ["a"]})
        front.path.append(str(tmp_path / "first"))
        front.start()
        assert front.ask("POST", "/v1/completions", {"model": "m", "prompt": "p", "max_tokens": 1}).status == 503
        assert front.ask("GET", "/v1/models").status == 503
        assert front.replicas["a"].seen()["requests"] == 0
        there.unlink()
        assert front.ask("POST", "/v1/completions", {"model": "m", "prompt": "p", "max_tokens": 1}).status == 200


# Another user, before the program begins.
AS_OTHER = "import os; me = os.getuid(); os.getuid = lambda: me + 1\n"
LOAD = ("serving.on_host", "vllm_load")
SAMPLE = ("serving.status.on_host", "sample")
BENCH = ("features.bench.on_host", "bench")


# fault: serving/on_host/vllm_load.py: connect_to_own_only() → pass
# fault: serving/status/on_host/sample.py: connect_to_own_only() → pass
# fault: features/bench/on_host/bench.py: connect_to_own_only() → pass
# fault: wire/listeners.py: not is_own_listener(*at[:2]): → False:
@pytest.mark.parametrize("where", [LOAD, SAMPLE, BENCH], ids=lambda where: where[1])
def test_a_program_in_a_node_shows_the_key_to_no_program_of_another_user(
    where: tuple[str, str], tmp_path: Path
) -> None:
    """A front that has ended is started again after a moment, in which another user may listen at its port."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port, seen = server.getsockname()[1], list[bytes]()
        (tmp_path / "vllm.py").write_text("__version__ = '0'\n")
        serve = {"phase": "ready", "host": "127.0.0.1", "port": port, "name": "m"}
        (tmp_path / "status.json").write_text(json.dumps({"v": 1, "serve": serve}))
        words, sent = {
            LOAD: (("127.0.0.1", str(port), "5"), ""),
            SAMPLE: (("60", str(tmp_path)), ""),
            BENCH: ((), json.dumps({"key": "sk-canary", "api": f"http://127.0.0.1:{port}"})),
        }[where]
        program = python(*where, *words, seconds=30, needs=(*NEEDED, "wire.listeners", "wire.metrics"))
        (tmp_path / "sitecustomize.py").write_text(AS_OTHER)
        run_until_a_line(program, sent, tmp_path)
        (tmp_path / "sitecustomize.py").write_text("")
        answering = threading.Thread(target=answer, args=(server, seen))
        answering.start()
        run_until_a_line(program, sent, tmp_path)
        answering.join()
        # The first to come was the program of this user.
        assert b"Authorization: Bearer sk-canary" in seen[0]
        server.settimeout(0.1)
        with pytest.raises(TimeoutError):
            server.accept()


def run_until_a_line(program: RemoteProgram, sent: str, folder: Path) -> None:
    """Run a program here as in a node, until its first message."""
    (folder / "key").write_text("sk-canary")
    environment = {**os.environ, "PYTHONPATH": str(folder), "VCLUSTER_API_KEY_FILE": str(folder / "key")}
    argv = [sys.executable, *program.argv[1:]]
    with subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdin and running.stdout
        running.stdin.write(f"{sent}\n")
        running.stdin.flush()
        assert running.stdout.readline().startswith("{")
        running.stdin.close()


# fault: serving/node/proc.py: return str(probe.getsockname()[0]) == address → return True
def test_an_address_of_another_machine_is_not_here() -> None:
    assert proc.is_here("127.0.0.1")
    assert proc.is_here("::1")
    assert not proc.is_here("192.0.2.1")
