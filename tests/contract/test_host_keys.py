"""The verdict on a host's key is the one of ssh, by every carrier, and the error has the remedy."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.carriers import Client, make
from tests.support.figures import tallied
from tests.support.sshd import Sshd, keygen
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import HostKeyRejected
from vllm_cluster.kernel.transport import Kind
from vllm_cluster.kernel.transport.base import Target, Transport

Connect = Callable[[Target, Kind], Transport]


@dataclass(frozen=True)
class Case:
    """What known_hosts and ssh_config hold, with {true}, {other}, {port} and {hashed} filled in."""

    name: str
    known: str
    config: tuple[str, ...] = ()
    fabric_asks_for_openssh: bool = False


CASES = [
    Case("known", "[127.0.0.1]:{port} {true}"),
    Case("unknown", ""),
    Case("another host's", "[127.0.0.2]:{port} {true}"),
    Case("changed", "[127.0.0.1]:{port} {other}"),
    Case("changed, true below", "[127.0.0.1]:{port} {other}\n[127.0.0.1]:{port} {true}"),
    Case("hashed", "{hashed} {true}"),
    Case("hashed, changed", "{hashed} {other}"),
    Case("without port", "127.0.0.1 {true}"),
    Case("without port, changed", "127.0.0.1 {other}"),
    Case("pattern", "[127.0.0.*]:{port} {true}"),
    Case("pattern of one", "[127.0.0.?]:{port},x {true}"),
    Case("pattern, excluded", "[127.0.0.*]:{port},![127.0.0.1]:{port} {true}"),
    Case("other port", "[127.0.0.1]:1 {true}"),
    Case("alias", "gpu {true}", ("HostKeyAlias gpu",)),
    Case("alias, changed", "gpu {other}", ("HostKeyAlias gpu",)),
    Case("alias, known only by address", "[127.0.0.1]:{port} {true}", ("HostKeyAlias gpu",)),
    Case("alias in capitals", "gpu {true}", ("HostKeyAlias GPU",)),
    Case("revoked", "[127.0.0.1]:{port} {true}\n@revoked * {true}"),
    Case("revoked, nothing else", "@revoked * {true}"),
    Case("another revoked", "[127.0.0.1]:{port} {true}\n@revoked * {other}"),
    Case("known by another type", "[127.0.0.1]:{port} {rsa}"),
    Case("known by another type too", "[127.0.0.1]:{port} {rsa}\n[127.0.0.1]:{port} {true}"),
    Case("rubbish around", "# x\n\nx\n[127.0.0.1]:{port} ssh-ed25519 ?\n [127.0.0.1]:{port} {true} note"),
    Case("asked to accept", "", ("StrictHostKeyChecking accept-new",)),
    Case("asked to accept, changed", "[127.0.0.1]:{port} {other}", ("StrictHostKeyChecking accept-new",)),
    Case("two files", "", ("UserKnownHostsFile {empty} {file}",)),
    Case("global file", "", ("GlobalKnownHostsFile {file}",)),
    Case("other file", "[127.0.0.1]:{port} {true}", ("UserKnownHostsFile {empty}",)),
    Case("authority", "@cert-authority [127.0.0.1]:{port} {authority}", (), True),
]


@pytest.fixture(scope="module")
def other_keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("keys")
    keys = {"other": keygen(folder / "other"), "rsa": keygen(folder / "rsa", "rsa")}
    return {name: " ".join(Path(f"{key}.pub").read_text().split()[:2]) for name, key in keys.items()}


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory, user_key: Path) -> Iterator[tuple[Sshd, str]]:
    """A server whose key a certificate authority has signed."""
    folder = tmp_path_factory.mktemp("certified")
    authority = keygen(folder / "authority")
    server = Sshd(folder / "sshd", user_key, options=(f"HostCertificate {folder}/sshd/host_ed25519-cert.pub",))
    server.folder.mkdir()
    key = keygen(server.folder / "host_ed25519")
    sign = ["ssh-keygen", "-q", "-s", str(authority), "-I", "host", "-h", "-n", "127.0.0.1", f"{key}.pub"]
    subprocess.run(sign, check=True)
    server.start()
    yield server, " ".join(Path(f"{authority}.pub").read_text().split()[:2])
    server.stop()


def ssh_accepts(client: Client, alias: str) -> bool:
    """The verdict of the real ssh on a copy of the files."""
    argv = ["ssh", "-F", str(client.config), "-o", "BatchMode=yes", "-o", "UpdateHostKeys=no", "--", alias, "true"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode in (0, 255), done.stderr
    return done.returncode == 0


def accepts(client: Client, kind: Kind, alias: str) -> bool:
    transport = make(client.target(alias), kind)
    try:
        transport.connect(Deadline.after(20))
    except HostKeyRejected:
        return False
    finally:
        transport.close()
    return True


@pytest.fixture(scope="module")
def same() -> Iterator[dict[str, bool]]:
    """Of each case, whether both transports came to the verdict of ssh; kept as the figure of P16."""
    what = "as ssh decides, by both; for @cert-authority Fabric refuses and names openssh"
    with tallied("P16", "known_hosts × ssh_config × both transports, beside the real ssh", what) as verdicts:
        yield verdicts


# fault: kernel/transport/fabric/login.py: for file in (*at.known_hosts, *at.global_known_hosts) → for file in at.known_hosts
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_verdict_is_that_of_ssh(
    case: Case,
    client: Client,
    certified: tuple[Sshd, str],
    other_keys: dict[str, str],
    same: dict[str, bool],
) -> None:
    same[case.name] = False
    server, authority = certified
    words = {**other_keys, "true": server.public(), "port": str(server.port), "authority": authority}
    if "{hashed}" in case.known:
        words["hashed"] = hashed_name(f"[127.0.0.1]:{server.port}", client.folder)
    known = case.known.format(**words) + "\n"
    (client.folder / "empty").touch()
    (client.folder / "file").write_text(server.known_line())
    files = {"empty": str(client.folder / "empty"), "file": str(client.folder / "file")}
    client.add("h", server, *(line.format(**files) for line in case.config), known=known)
    verdicts = {}
    for name in ("fabric", "openssh", "ssh"):
        client.known.write_text(known)
        verdicts[name] = ssh_accepts(client, "h") if name == "ssh" else accepts(client, name, "h")  # type: ignore[arg-type]
    expected = verdicts["ssh"]
    assert verdicts["openssh"] == expected
    assert verdicts["fabric"] == (expected and not case.fabric_asks_for_openssh)
    same[case.name] = True


def hashed_name(name: str, folder: Path) -> str:
    """A name as ssh-keygen hashes it."""
    file = folder / "to-hash"
    file.write_text(f"{name} ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE=\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", file], check=True, capture_output=True)
    return file.read_text().split()[0]


def fingerprint(server: Sshd) -> str:
    listed = subprocess.run(
        ["ssh-keygen", "-lf", f"{server.host_keys[0]}.pub"], capture_output=True, text=True, check=True
    )
    return listed.stdout.split()[1]


def rejection(client: Client, kind: Kind) -> HostKeyRejected:
    transport = make(client.target("h"), kind)
    try:
        with pytest.raises(HostKeyRejected) as failure:
            transport.connect(Deadline.after(20))
    finally:
        transport.close()
    return failure.value


def test_an_unknown_key_is_shown_and_can_be_compared(kind: Kind, client: Client, shared_server: Sshd) -> None:
    client.add("h", shared_server, known="")
    error = rejection(client, kind)
    assert fingerprint(shared_server) in error.message
    assert f":{shared_server.port} is not known" in error.message
    assert error.hint is not None
    assert f"ssh -F {client.config} h" in error.hint
    assert client.known.read_text() == ""


def test_a_changed_key_names_the_line_and_the_way_out(
    kind: Kind, client: Client, shared_server: Sshd, other_keys: dict[str, str]
) -> None:
    client.add("h", shared_server, known=f"# first\n[127.0.0.1]:{shared_server.port} {other_keys['other']}\n")
    error = rejection(client, kind)
    assert f"{client.known}:2" in error.message
    assert fingerprint(shared_server) in error.message
    assert error.hint is not None
    assert f"ssh-keygen -f {client.known} -R '[127.0.0.1]:{shared_server.port}'" in error.hint


def test_a_new_key_is_accepted_once_when_asked(
    kind: Kind, client: Client, shared_server: Sshd, other_keys: dict[str, str], connect: Connect
) -> None:
    # A file whose last line has no end, as a person leaves it; ssh itself would join the new line to it.
    end = "\n" if kind == "openssh" else ""
    client.add("h", shared_server, "HashKnownHosts no", known=f"someone {other_keys['other']}{end}")
    connect(client.target("h", accept_new_keys=True), kind).run(["true"], Deadline.after(10))
    assert shared_server.known_line().split() == client.known.read_text().splitlines()[1].split()[:3]
    assert ssh_accepts(client, "h")
    before = client.known.read_text()
    connect(client.target("h", accept_new_keys=True), kind)
    assert client.known.read_text() == before


def test_a_new_key_is_stored_hashed_where_ssh_config_asks_for_it(
    client: Client, shared_server: Sshd, connect: Connect
) -> None:
    client.add("h", shared_server, "HashKnownHosts yes", known="")
    connect(client.target("h", accept_new_keys=True), "fabric")
    assert client.known.read_text().startswith("|1|")
    assert ssh_accepts(client, "h")
