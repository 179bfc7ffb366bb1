"""The carriers, and the client's side of a connection to a server made here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.sshd import Sshd
from vllm_cluster.kernel import transport as carriers
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.kernel.transport import Kind
from vllm_cluster.kernel.transport.base import Target, Transport
from vllm_cluster.kernel.transport.jumps import Jumps

REMOTE: tuple[Kind, ...] = ("fabric", "openssh")
JUMPS: list[Jumps] = []


def make(target: Target, kind: Kind) -> Transport:
    """A carrier that shares its jump hosts with no other; they are left at the end of the test."""
    JUMPS.append(Jumps())
    return carriers.make_transport(target, kind, JUMPS[-1])


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


def failure(target: Target, kind: Kind, seconds: float = 20) -> VclusterError:
    """Why there is no connection to it."""
    transport = make(target, kind)
    try:
        with pytest.raises(VclusterError) as caught:
            transport.connect(Deadline.after(seconds))
    finally:
        transport.close()
    assert caught.value.hint
    return caught.value


def refused_by(server: Sshd, client: Client, kind: Kind) -> VclusterError:
    """Why a login fails there; the server is stopped."""
    try:
        client.add("h", server)
        return failure(client.target("h"), kind)
    finally:
        server.stop()
