"""What ssh_config forbids: Fabric connects only where ssh does, and leaves no more behind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.carriers import Client, make
from tests.support.sshd import Sshd, keygen
from tests.support.waiting import until
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import OpenSshNeeded, VclusterError

PARAMIKO = "paramiko has none of these"
NO_PRIMES = "a host chooses their numbers, which can keep a core busy (keepalive.py)"


@dataclass(frozen=True)
class Case:
    """Words of ssh_config, and whether ssh connects by them; `stricter` is why Fabric does not where ssh does.

    `known` is the type of the host's key in known_hosts, `user` a key that the host accepts.
    """

    words: str
    ssh: bool = False
    stricter: str = ""
    known: str = "ed25519"
    user: str = "ed25519"

    @property
    def name(self) -> str:
        """The words, with what the keys are."""
        kinds = [kind for kind in (self.known and f"known by {self.known}", self.user) if "ed25519" not in kind]
        return "; ".join([self.words.replace("\n", ", "), *kinds])


CASES = [
    Case("", ssh=True),
    Case("", ssh=True, known="ecdsa"),
    Case("", ssh=True, known="rsa"),
    Case("", ssh=True, user="ecdsa"),
    Case("", ssh=True, user="rsa"),
    # Who is let in.
    Case("IdentitiesOnly no", ssh=True, user="agent-only"),
    Case("IdentitiesOnly no\nIdentityAgent SSH_AUTH_SOCK", ssh=True, user="agent-only"),
    Case("IdentitiesOnly no\nIdentityAgent none", user="agent-only"),
    Case("IdentitiesOnly no\nIdentityAgent $NO_SUCH_VARIABLE", user="agent-only"),
    Case("IdentitiesOnly yes", user="agent-only"),
    Case("PubkeyAuthentication no"),
    Case("PreferredAuthentications password"),
    Case("PreferredAuthentications none"),
    Case("PreferredAuthentications keyboard-interactive,publickey", ssh=True),
    Case("PubkeyAcceptedAlgorithms rsa-sha2-512"),
    Case("PubkeyAcceptedAlgorithms rsa-sha2-256", ssh=True, user="rsa"),
    Case("PubkeyAcceptedAlgorithms -rsa*", user="rsa"),
    Case("RequiredRSASize 4096", user="rsa"),
    # Whose key is taken.
    Case("RequiredRSASize 4096", known="rsa"),
    Case("HostKeyAlgorithms rsa-sha2-256", ssh=True, known="rsa"),
    Case("HostKeyAlgorithms rsa-sha2-512"),
    Case("HostKeyAlgorithms ssh-dss"),
    Case("RevokedHostKeys {folder}/revoked"),
    Case("RevokedHostKeys {folder}/none-revoked", ssh=True, stricter="ssh's format of that file"),
    Case("KnownHostsCommand /bin/false"),
    Case("KnownHostsCommand /bin/true", ssh=True, stricter="it may revoke a key"),
    Case("UserKnownHostsFile none\nGlobalKnownHostsFile {folder}/global\nStrictHostKeyChecking accept-new"),
    Case("UserKnownHostsFile none\nGlobalKnownHostsFile none\nStrictHostKeyChecking accept-new"),
    Case("StrictHostKeyChecking no", ssh=True, known="other", stricter="a changed key is never accepted"),
    Case("NoHostAuthenticationForLocalhost yes", ssh=True, known="", stricter="an unknown key is never accepted"),
    # By which means.
    Case("Ciphers 3des-cbc"),
    Case("Ciphers aes256-ctr\nMACs hmac-sha2-512", ssh=True),
    Case("Ciphers chacha20-poly1305@openssh.com", ssh=True, stricter=PARAMIKO),
    Case("Ciphers aes256-ctr\nMACs hmac-md5"),
    Case("MACs umac-128-etm@openssh.com", ssh=True, stricter=PARAMIKO),
    Case("KexAlgorithms diffie-hellman-group1-sha1"),
    Case("KexAlgorithms curve25519-sha256", ssh=True),
    Case("KexAlgorithms sntrup761x25519-sha512@openssh.com", ssh=True, stricter=PARAMIKO),
    Case("KexAlgorithms diffie-hellman-group16-sha512", ssh=True, stricter=NO_PRIMES),
    # Which way.
    Case("BindInterface no-such"),
    Case("BindAddress 203.0.113.7"),
    Case("AddressFamily inet6"),
    Case("ProxyCommand touch {folder}/ran-%u"),
    Case("ProxyCommand touch {folder}/ran-%C"),
    Case("ProxyCommand touch {folder}/ran-%"),
]


@dataclass(frozen=True)
class Place:
    """A host with several keys that takes several, and what it is about."""

    server: Sshd
    folder: Path
    agent: Path

    def client(self, case: Case, folder: Path) -> Client:
        """The configuration of one case, in a folder of its own."""
        folder.mkdir()
        (folder / "revoked").write_text(self.server.public() + "\n")
        (folder / "none-revoked").touch()
        made = Client(folder, self.folder / case.user)
        known = self.server.known_line(kind=case.known) if case.known not in ("", "other") else ""
        if case.known == "other":
            known = f"[127.0.0.1]:{self.server.port} {' '.join((self.folder / 'other.pub').read_text().split()[:2])}\n"
        words = case.words.format(folder=folder)
        made.add("h", self.server, *words.splitlines(), known=known)
        return made


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("restrictions")
    keys = [keygen(folder / kind, kind) for kind in ("ed25519", "ecdsa", "rsa")]
    inside = keygen(folder / "inside")
    keygen(folder / "other")
    server = Sshd(folder / "sshd", keys[0], host_key_kinds=("ed25519", "ecdsa", "rsa")).start()
    with (server.folder / "authorized_keys").open("ab") as accepted:
        accepted.writelines(key.with_suffix(".pub").read_bytes() for key in (*keys[1:], inside))
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", folder / "agent"], stdout=subprocess.DEVNULL)
    until((folder / "agent").exists, 10, every=0.01)
    subprocess.run(["ssh-add", "-q", inside], check=True, env={**os.environ, "SSH_AUTH_SOCK": f"{folder}/agent"})
    yield Place(server, folder, folder / "agent")
    agent.terminate()
    agent.wait()
    server.stop()


def ssh_to(client: Client) -> subprocess.Popen[str]:
    options = ("BatchMode=yes", "UpdateHostKeys=no", "ConnectTimeout=10")
    argv = ["ssh", "-F", str(client.config), *(f"-o{option}" for option in options), "--", "h", "true"]
    return subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def fabric_to(client: Client) -> VclusterError | None:
    transport = make(client.target("h"), "fabric")
    try:
        transport.connect(Deadline.after(20))
    except VclusterError as error:
        assert error.hint
        return error
    finally:
        transport.close()
    return None


def left(client: Client) -> dict[str, str]:
    return {file.name: file.read_text() for file in client.folder.iterdir() if file != client.config}


# fault: kernel/transport/ssh_config.py: only_ssh=_only_ssh(words), → only_ssh=None,
# fault: kernel/transport/ssh_config.py: algorithms=tuple(_algorithms(words)), → algorithms=(),
# fault: kernel/transport/ssh_config.py: agent=_agent(words.get("identityagent", ["SSH_AUTH_SOCK"])[0], → agent=_agent("SSH_AUTH_SOCK",
# fault: kernel/transport/ssh_config.py: if token not in _PROXY_TOKENS: → if False:
# fault: kernel/transport/fabric/dial.py: if resolved.only_ssh: → if False:
# fault: kernel/transport/fabric/hop.py: if word := made.without_any(): → if word := "":
# fault: kernel/transport/fabric/login.py: if key.get_name() == "ssh-rsa" and key.get_bits() < at.rsa_bits: → if False:
# fault: kernel/transport/fabric/login.py: if why := _unfit(self._resolved, key): → if why := "":
# fault: kernel/transport/fabric/login.py: if "rsa" in name and key.get_bits() < at.rsa_bits: → if False:
# fault: kernel/transport/fabric/login.py: if not self._at.known_hosts: → if False:
# fault: kernel/transport/fabric/keepalive.py: or name.removesuffix(OLDER_NAME) in allowed → or False
@pytest.mark.promise("P16")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_fabric_connects_only_where_ssh_does(
    case: Case, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(place.agent))
    monkeypatch.delenv("NO_SUCH_VARIABLE", raising=False)
    by_ssh, by_fabric = (place.client(case, tmp_path / name) for name in ("ssh", "fabric"))
    with ssh_to(by_ssh) as ssh:
        refusal = fabric_to(by_fabric)
        _, errors = ssh.communicate(timeout=20)
    assert ssh.returncode == (0 if case.ssh else 255), errors
    assert (refusal is None) == (case.ssh and not case.stricter), refusal
    if case.stricter in (PARAMIKO, NO_PRIMES):
        assert isinstance(refusal, OpenSshNeeded), refusal
    assert left(by_fabric).keys() <= left(by_ssh).keys()
    assert left(by_fabric)["known_hosts"] == left(by_ssh)["known_hosts"]
