"""The hosts and carriers that the contract is tested on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.carriers import JUMPS, REMOTE, Client, make
from tests.support.sshd import Sshd, keygen, require_sshd
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.transport import Kind
from vllm_cluster.kernel.transport.base import Target, Transport

ALL: tuple[Kind, ...] = (*REMOTE, "local")


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tester's own agent has no part in this."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture(autouse=True)
def jumps_closed() -> Iterator[None]:
    """No connection to a jump host outlives its test."""
    yield
    while JUMPS:
        JUMPS.pop().close()


@pytest.fixture(scope="session")
def user_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The key that every server accepts."""
    require_sshd()
    return keygen(tmp_path_factory.mktemp("user") / "id_ed25519")


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory, user_key: Path) -> Iterator[Sshd]:
    """A server for tests that leave it as it was."""
    server = Sshd(tmp_path_factory.mktemp("sshd"), user_key).start()
    yield server
    server.stop()


@pytest.fixture
def server(tmp_path: Path, user_key: Path) -> Iterator[Sshd]:
    """A server for one test, which may break it."""
    server = Sshd(tmp_path / "sshd", user_key).start()
    yield server
    server.stop()


@pytest.fixture
def started() -> Iterator[list[Sshd]]:
    """Servers that end with the test, which starts them."""
    servers: list[Sshd] = []
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture
def client(tmp_path: Path, user_key: Path) -> Client:
    """A client that knows no host yet."""
    folder = tmp_path / "client"
    folder.mkdir()
    client = Client(folder, user_key)
    client.known.touch()
    client.write()
    return client


@pytest.fixture
def connect() -> Iterator[Callable[[Target, Kind], Transport]]:
    """Connects, and closes at the end of the test."""
    opened: list[Transport] = []

    def open_one(target: Target, kind: Kind) -> Transport:
        transport = make(target, kind)
        opened.append(transport)
        transport.connect(Deadline.after(20))
        return transport

    yield open_one
    for transport in opened:
        transport.close()


@pytest.fixture(scope="module", params=ALL)
def host(
    request: pytest.FixtureRequest, shared_server: Sshd, tmp_path_factory: pytest.TempPathFactory, user_key: Path
) -> Iterator[Transport]:
    """A connection by each carrier in turn, for tests that leave it as it was."""
    kind: Kind = request.param
    client = Client(tmp_path_factory.mktemp("client"), user_key)
    client.add("shared", shared_server)
    transport = make(client.target("local" if kind == "local" else "shared"), kind)
    transport.connect(Deadline.after(20))
    yield transport
    transport.close()


@pytest.fixture(params=REMOTE)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each carrier that connects to a host."""
    kind: Kind = request.param
    return kind
