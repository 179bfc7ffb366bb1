"""The hosts and carriers that the contract is tested on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.contract.sshd import Sshd, keygen, require_sshd
from vllm_cluster import transport as carriers
from vllm_cluster.transport import Kind
from vllm_cluster.transport.base import Deadline, Target, Transport
from vllm_cluster.transport.jumps import Jumps

REMOTE: tuple[Kind, ...] = ("fabric", "openssh")
ALL: tuple[Kind, ...] = (*REMOTE, "local")
_jumps: list[Jumps] = []


def make(target: Target, kind: Kind) -> Transport:
    """A carrier that shares its jump hosts with nobody; they are left at the end of the test."""
    _jumps.append(Jumps())
    return carriers.make(target, kind, _jumps[-1])


@dataclass
class Client:
    """The client's side of a connection: an ssh_config, known_hosts and a key of its own."""

    folder: Path
    key: Path
    hosts: list[str] = field(default_factory=list)

    @property
    def known(self) -> Path:
        """The known_hosts file."""
        return self.folder / "known_hosts"

    @property
    def config(self) -> Path:
        """The ssh_config file."""
        return self.folder / "config"

    def add(self, alias: str, server: Sshd, *more: str, known: str | None = None) -> None:
        """Give a server a name; `known` replaces its true line in known_hosts."""
        self.hosts += [f"Host {alias}", *more, "HostName 127.0.0.1", f"Port {server.port}"]
        with self.known.open("a") as file:
            file.write(server.known_line() if known is None else known)
        self.write()

    def write(self, *first: str) -> None:
        """Write the ssh_config."""
        common = (
            "Host *",
            f"UserKnownHostsFile {self.known}",
            "GlobalKnownHostsFile /dev/null",
            f"IdentityFile {self.key}",
            "IdentitiesOnly yes",
        )
        self.config.write_text("\n".join((*first, *self.hosts, *common)) + "\n")

    def target(self, alias: str, **words: object) -> Target:
        """A host of the inventory."""
        return Target(**{"name": "gpu1", "destination": alias, "config": self.config, **words})  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tester's own agent has no part in this."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture(autouse=True)
def jumps_closed() -> Iterator[None]:
    """No connection to a jump host outlives its test."""
    yield
    while _jumps:
        _jumps.pop().close()


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
