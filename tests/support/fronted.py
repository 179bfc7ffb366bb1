"""A front with made-up replicas behind it, as processes of this machine's loopback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.waiting import until
from vllm_cluster.wire.front import FrontDeployment, FrontReplica, FrontRoutes, FrontStatus, ReplicaState
from vllm_cluster.wire.reading import read

KEY, REPLICA_KEY = "sk-client-0123456789", "replica-key"


@dataclass
class Replica:
    """A made-up server, and what the routes have of it."""

    process: subprocess.Popen[str]
    route: FrontReplica

    def seen(self) -> dict[str, Any]:
        """What it has seen."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.route.port}/seen", timeout=10) as reply:
            return dict(json.load(reply))

    def make(self, how: Literal["die", "late"]) -> None:
        """End its engine, under an API that stays, or have no question for its health answered any more."""
        with suppress(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://127.0.0.1:{self.route.port}/{how}", timeout=10)


@dataclass
class Answer:
    """What came back over a connection of its own."""

    status: int
    headers: dict[str, str]
    body: bytes
    raw: bytes = field(repr=False)

    @property
    def code(self) -> str:
        """The code of an error."""
        return str(json.loads(self.body)["error"]["code"])


class Fronted:
    """The front's process, its files, and its replicas."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self._chosen = self.port
        self.routes, self.status_file, self.key_file = (folder / name for name in ("routes", "status.json", "key"))
        self.key_file.write_text(KEY)
        (folder / "replica-key").write_text(REPLICA_KEY)
        self.replicas: dict[str, Replica] = {}
        self.process: subprocess.Popen[str] | None = None
        # Folders that its Python looks into first.
        self.path: list[str] = []
        self._connections: list[socket.socket] = []

    def start(self, *options: str) -> None:
        """Start the front, and wait until it listens.

        Raises:
            AssertionError: it has ended, with what it has printed.
        """
        lines: list[str] = []
        for _ in range(3):
            lines = self._start(*options)
            if "listening" in "".join(lines[-1:]):
                return
            if self.port != self._chosen or "cannot listen" not in "".join(lines):
                break
            # Another test has taken the port since it was found free.
            self.port = self._chosen = free_port()
        raise AssertionError(f"the front has ended: {''.join(lines)}")

    def _start(self, *options: str) -> list[str]:
        """What a front has printed until it listens, or has ended."""
        argv = [sys.executable, "-m", "vllm_cluster.serving.node.front", f"--listen=127.0.0.1:{self.port}"]
        argv += [f"--routes={self.routes}", f"--status={self.status_file}", *options]
        environment = {
            **os.environ,
            "VCLUSTER_API_KEY_FILE": str(self.key_file),
            "PYTHONPATH": ":".join([*self.path, str(ROOT)]),
        }
        self.process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True, cwd=self.folder)
        assert self.process.stdout is not None
        lines: list[str] = []
        for line in self.process.stdout:
            lines.append(line)
            if "listening" in line:
                break
        return lines

    def replica(self, name: str, *names: str, pace: float = 50.0) -> Replica:
        """Start a server; it is in the routes once they are written."""
        argv = [sys.executable, "-m", "tests.support.openai_server", f"--pace={pace}"]
        argv += [f"--name={one}" for one in names or ("m",)]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert process.stdout is not None
        port = int(process.stdout.readline())
        route = FrontReplica(name, "127.0.0.1", port, "ready", str(self.folder / "replica-key"), len(self.replicas))
        self.replicas[name] = Replica(process, route)
        return self.replicas[name]

    def set_state(self, name: str, state: ReplicaState) -> None:
        """Change a replica's state in the routes that are written next."""
        self.replicas[name].route = replace(self.replicas[name].route, state=state)

    def write(self, deployments: dict[str, Sequence[str]], phase: str = "loading 3/12", retry: int = 7) -> None:
        """Replace the routes, and wait until they are in force."""
        made = tuple(
            FrontDeployment(name, tuple(self.replicas[one].route for one in ids), phase, retry)
            for name, ids in deployments.items()
        )
        self.put(json.dumps(asdict(FrontRoutes(1, made))))

    def put(self, text: str) -> None:
        """Replace the routes by any text."""
        fresh = self.routes.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.routes)

    def status(self) -> FrontStatus:
        """The status as it was written last."""
        return self.status_of(self.status_file)

    @staticmethod
    def status_of(file: Path) -> FrontStatus:
        """A status as it was written."""
        return read(FrontStatus, file.read_bytes(), "the front")

    def connect(self) -> socket.socket:
        """A connection to the front, which ends with it at the latest."""
        self._connections.append(socket.create_connection(("127.0.0.1", self.port), 60))
        return self._connections[-1]

    def send(self, raw: bytes, *, end: bool = False) -> Answer:
        """Send bytes over a connection of their own; the answer to the first request in them."""
        with self.connect() as connection:
            with suppress(ConnectionError):
                connection.sendall(raw)
            if end:
                connection.shutdown(socket.SHUT_WR)
            return read_answer(connection, head_only=raw.startswith(b"HEAD "))

    def ask(self, method: str, target: str, body: Any = None, *, key: str | None = KEY, headers: str = "") -> Answer:
        """Make one request."""
        return self.send(request(method, target, body, key=key, headers=headers))

    def close(self) -> None:
        """End all connections and processes."""
        for connection in self._connections:
            connection.close()
        for process in (self.process, *(one.process for one in self.replicas.values())):
            if process:
                process.kill()
                process.communicate(timeout=10)


def request(method: str, target: str, body: Any = None, *, key: str | None = KEY, headers: str = "") -> bytes:
    """The bytes of a request."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {target} HTTP/1.1", "Host: x"]
    lines += [f"Authorization: Bearer {key}"] if key else []
    lines += [] if body is None else ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    return ("\r\n".join(lines) + "\r\n" + headers + "\r\n").encode() + data


def read_answer(connection: socket.socket, *, head_only: bool = False) -> Answer:
    """Read one answer; a body that breaks off is an error.

    Raises:
        ConnectionError: the connection has ended before it was whole.
    """
    head, rest = _until(connection, b"", b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    status = int(first.split()[1])
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if head_only or status in (100, 204):
        return Answer(status, headers, b"", head)
    if "content-length" in headers:
        while len(rest) < int(headers["content-length"]):
            rest += _more(connection)
        return Answer(status, headers, rest, head)
    if headers.get("transfer-encoding") != "chunked":
        return Answer(status, headers, b"".join([rest, *_all(connection)]), head)
    body = b""
    while True:
        size, rest = _until(connection, rest, b"\r\n")
        while len(rest) < int(size, 16) + 2:
            rest += _more(connection)
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        if int(size, 16) == 0:
            return Answer(status, headers, body, head)


def _until(connection: socket.socket, data: bytes, mark: bytes) -> tuple[bytes, bytes]:
    while mark not in data:
        data += _more(connection)
    before, _, rest = data.partition(mark)
    return before, rest


def _more(connection: socket.socket) -> bytes:
    data = connection.recv(1 << 16)
    if not data:
        raise ConnectionError("ended")
    return data


def _all(connection: socket.socket) -> Iterator[bytes]:
    while data := connection.recv(1 << 16):
        yield data


@contextmanager
def fronted(folder: Path, *replicas: str, options: Sequence[str] = ()) -> Iterator[Fronted]:
    """A front with these replicas of the model `m`, all of them ready."""
    made = Fronted(folder)
    try:
        for name in replicas:
            made.replica(name)
        made.write({"m": replicas})
        made.start(*options)
        yield made
    finally:
        made.close()


def routed_to(listener: socket.socket) -> str:
    """Routes to a replica that listens there."""
    replica = FrontReplica("a", "127.0.0.1", listener.getsockname()[1], "ready", None, 0)
    return json.dumps(asdict(FrontRoutes(1, (FrontDeployment("m", (replica,)),))))


@contextmanager
def behind(folder: Path, answer: Callable[[socket.socket], object], *, at_once: bool = False) -> Iterator[Fronted]:
    """A front whose replica answers each request so: one after the other, or all of them at once."""

    def one(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(1 << 16)
            answer(connection)

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                if at_once:
                    threading.Thread(target=one, args=(connection,), daemon=True).start()
                else:
                    one(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener, fronted(folder) as made:
        threading.Thread(target=serve, daemon=True).start()
        made.put(routed_to(listener))
        until(lambda: made.ask("GET", "/ping", key=None).status == 200, 10)
        yield made
