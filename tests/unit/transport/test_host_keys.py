"""The judgement on host keys, without a server."""

from __future__ import annotations

import errno
import os
import resource
from io import FileIO
from pathlib import Path
from typing import Any

import paramiko
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from hypothesis import given
from hypothesis import strategies as st

from vllm_cluster.kernel.errors import HostKeyRejected
from vllm_cluster.kernel.transport.fabric import login
from vllm_cluster.kernel.transport.fabric.login import HostKeys, matches, read_known_hosts
from vllm_cluster.kernel.transport.ssh_config import SshEndpoint

CLIENT: Any = None


def made(secret: bytes) -> paramiko.PKey:
    message = paramiko.Message()
    message.add_string("ssh-ed25519")
    message.add_string(ed25519.Ed25519PrivateKey.from_private_bytes(secret * 32).public_key().public_bytes_raw())
    return paramiko.Ed25519Key(data=message.asbytes())


ED, OTHER, NISTP = made(b"1"), made(b"2"), paramiko.ECDSAKey.generate()


def line(key: paramiko.PKey) -> str:
    return f"{key.get_name()} {key.get_base64()}"


def verdict(file: Path, key: paramiko.PKey, host: str = "h", port: int = 22, **more: Any) -> str:
    """Why the key is refused, empty where it is not."""
    keys = HostKeys(SshEndpoint("gpu1", host, host, port, "u", known_hosts=(file,), **more))
    try:
        keys.missing_host_key(CLIENT, host, key)
    except HostKeyRejected as error:
        return error.detail
    return ""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "known_hosts"


# fault: kernel/transport/fabric/login.py: if plain: → if False:
@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("port", [22, 2222])
def test_what_is_noted_is_found(file: Path, port: int, hashed: bool) -> None:
    name = "Gpu.lab%1"
    assert not verdict(file, ED, name, port, accept_new_keys=True, hash_known_hosts=hashed)
    assert (name in file.read_text()) != hashed
    assert not verdict(file, ED, name, port)
    assert f"is not the one in {file}:1" in verdict(file, OTHER, name, port, accept_new_keys=True)
    assert f"is not known: ssh-ed25519 {OTHER.fingerprint}" in verdict(file, OTHER, f"{name}x", port)


@given(st.text(max_size=300))
def test_any_file_can_be_read(text: str) -> None:
    for key in read_known_hosts(text.split("\n"), "f"):
        matches(key.names, "host")


@pytest.mark.parametrize(
    ("names", "host", "hit"),
    [
        ("a", "a", True),
        ("A", "a", True),
        ("a", "A", True),
        ("b,a", "a", True),
        ("a*", "abc", True),
        ("a?", "ab", True),
        ("a?", "abc", False),
        ("*,!ab", "ab", False),
        ("!ab,*", "ab", False),
        ("!ab", "cd", False),
        ("[h]:22", "[h]:22", True),
        ("[h]:22", "h:22", False),
        ("a.b", "axb", False),
        ("|1|bad", "a", False),
        ("|1|!|!", "a", False),
        # As ssh-keygen -H hashes it.
        ("|1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|3988QV0VE8wmZL7suNrYQLITLCg=", "192.168.1.61", True),
        ("|1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|3988QV0VE8wmZL7suNrYQLITLCg=", "192.168.1.62", False),
        ("", "a", False),
    ],
)
def test_names(names: str, host: str, hit: bool) -> None:
    assert matches(names, host) is hit


# fault: kernel/transport/fabric/login.py: if not plain and at.host_key_alias → if at.host_key_alias
def test_a_key_of_port_22_is_taken_where_none_is_known_for_the_port(file: Path) -> None:
    file.write_text(f"h {line(ED)}\n")
    assert not verdict(file, ED, port=2222)
    assert "is not known" in verdict(file, OTHER, port=2222)
    assert "is not known" in verdict(file, ED, port=2222, host_key_alias="other")
    file.write_text(f"h {line(ED)}\n[h]:2222 {line(OTHER)}\n")
    assert f"is not the one in {file}:2" in verdict(file, ED, port=2222)


def test_the_line_that_decided_is_reported(file: Path) -> None:
    file.write_text(f"# x\nh {line(NISTP)}\nh {line(OTHER)}\n")
    assert f"is not the one in {file}:3" in verdict(file, ED)


# fault: kernel/transport/fabric/login.py: if _is_whole(blob, fields[1]): → if blob:
# fault: kernel/transport/fabric/login.py: and len(parts) == _PARTS.get(key_type) and → and
# fault: kernel/transport/fabric/login.py: return at == len(blob) and → return
@pytest.mark.parametrize("key", [ED, NISTP, paramiko.RSAKey.generate(2048)], ids=["ed25519", "nistp256", "rsa"])
def test_a_torn_line_is_not_another_key_of_the_host(file: Path, key: paramiko.PKey) -> None:
    """A full disk cuts where it likes, and a quarter of the cuts are base64: the right host was called an attacker."""
    whole = f"h {line(key)}"
    for end in range(len(whole)):
        assert not [*read_known_hosts([whole[:end]], "f")]
    file.write_text(f"{whole[:-4]}\n")
    assert not verdict(file, key, accept_new_keys=True)
    assert not verdict(file, key)


# fault: kernel/transport/fabric/login.py: and parts[0] == key_type.encode() → and parts
def test_a_key_of_another_type_than_its_line_names_is_passed_over(file: Path) -> None:
    file.write_text(f"h ssh-rsa {NISTP.get_base64()}\n")
    assert "is not known" in verdict(file, NISTP)


# fault: kernel/transport/fabric/login.py: known.truncate( → (lambda _: 0)(
@pytest.mark.parametrize("before", ["", "x", f"x {line(OTHER)}\n"])
def test_what_cannot_be_noted_whole_leaves_the_file_as_it_was(file: Path, before: str) -> None:
    file.write_text(before)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 40, limits[1]))
    try:
        assert "File too large" in verdict(file, ED, accept_new_keys=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_text() == before


# fault: kernel/transport/fabric/login.py: == known.seek(0, os.SEEK_END): → or True:
def test_a_line_that_another_program_adds_behind_a_torn_one_stays(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    class Full(FileIO):
        def write(self, data: Any) -> int:
            if data.startswith(b"h "):
                return super().write(data[:20])
            os.write(other, f"\nx {line(OTHER)}\n".encode())
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    keys = HostKeys(SshEndpoint("gpu1", "h", "h", 22, "u", known_hosts=(file,), accept_new_keys=True))
    with monkeypatch.context() as patch, pytest.raises(HostKeyRejected) as caught:
        patch.setattr(Path, "open", lambda *_, **__: Full(file, "a+"))
        keys.missing_host_key(CLIENT, "h", ED)
    os.close(other)
    assert caught.value.hint == f"df -h {file.parent}"
    assert not verdict(file, OTHER, "x")


def test_an_authority_is_not_a_known_key_but_is_reported(file: Path) -> None:
    file.write_text(f"@cert-authority h {line(OTHER)}\n")
    assert "by a certificate authority only" in verdict(file, ED, accept_new_keys=True)


def test_the_known_types_are_asked_for_first(file: Path) -> None:
    file.write_text(f"h {line(NISTP)}\n@revoked h ssh-dss AAAA\nx {line(ED)}\n")
    assert HostKeys(SshEndpoint("gpu1", "h", "h", 22, "u", known_hosts=(file,))).preferred()[0] == NISTP.get_name()


# fault: kernel/transport/fabric/login.py: == "@revoked" and one.blob == → == "@revoked" and not
@pytest.mark.parametrize("more", ["", f"h {line(ED)}\n"])
def test_a_revoked_key_is_refused_though_another_line_knows_it(file: Path, more: str) -> None:
    file.write_text(f"{more}@revoked * {line(ED)}\n")
    assert "is revoked by" in verdict(file, ED)
    assert ("is not the one in" if more else "is not known") in verdict(file, OTHER)


# fault: kernel/transport/fabric/login.py: if any(matches(key.names, name) for name in names) → if names
def test_of_a_large_file_only_the_lines_of_the_host_are_kept(file: Path) -> None:
    """A fleet's 20,000 lines were 10 MB for each host that was connected to."""
    text = "".join(f"host{number} {line(OTHER)}\n" for number in range(1000))
    file.write_text(f"{text}h {line(ED)}\n[h]:2222 {line(NISTP)}\n")
    keys = HostKeys(SshEndpoint("gpu1", "h", "h", 2222, "u", known_hosts=(file,)))
    assert [key.where for key in keys._known] == [f"{file}:1001", f"{file}:1002"]


# fault: kernel/transport/fabric/login.py: _ensure_plain(number) → os.fstat(number)
def test_a_file_that_is_none_is_not_waited_for(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe without a writer held the login past its deadline, /dev/zero filled the memory."""
    os.mkfifo(file)
    for path in (file, Path("/dev/zero")):
        with pytest.raises(HostKeyRejected, match="it is not a plain file"):
            verdict(path, ED, accept_new_keys=True)
    assert "is not known" in verdict(Path(os.devnull), ED)
    file.unlink()
    file.write_text(f"h {line(ED)}\n")
    assert not verdict(file, ED)
    monkeypatch.setattr(login, "MAX_KNOWN_HOSTS", 50)
    with pytest.raises(HostKeyRejected, match="it has more than 0 MiB"):
        verdict(file, ED)


# fault: kernel/transport/fabric/login.py: if len(line) > MAX_LINE: → if False:
def test_a_line_that_no_person_has_is_not_read(file: Path) -> None:
    """Names of 13 MB in one line took 150 MB; without that line, a revoked key could be taken."""
    file.write_text(f"{'h,' * login.MAX_LINE} {line(ED)}\n{line(ED)}\n")
    with pytest.raises(HostKeyRejected, match="a line has more than 1 MiB"):
        verdict(file, ED)
