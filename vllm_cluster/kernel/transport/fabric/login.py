"""Who is who: the host's key judged by known_hosts, as ssh judges it, and the user's keys offered in ssh's order."""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TextIO

import paramiko
from paramiko.agent import AgentKey, AgentSSH
from paramiko.pkey import UnknownKeyType

from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import AuthenticationFailed, HostKeyRejected
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.transport import connect_errors
from vllm_cluster.kernel.transport.ssh_config import SshEndpoint, known_name
from vllm_cluster.kernel.transport.wildcard import wildcard
from vllm_cluster.wire.inside import beginning

AGENT_SECONDS = 10.0
# 200,000 hosts with hashed names.
MAX_KNOWN_HOSTS = 32 << 20
# Of one line: names of 20,000 hosts that share a key. As patterns, one of 13 MB took 150 MB.
MAX_LINE = 1 << 20
# As ssh has it for a private key.
MAX_KEY = 1 << 20
# Hardware keys (sk-…) are known to the agent, but signing with them breaks paramiko.
_USABLE = ("ssh-ed25519", "ssh-rsa", "ecdsa-sha2-")
# How many parts a key of each type has, its name included: ssh passes over others.
_PARTS = {
    "ssh-ed25519": 2,
    "ssh-rsa": 3,
    "ssh-dss": 5,
    **{f"ecdsa-sha2-nistp{size}": 3 for size in (256, 384, 521)},
    "sk-ssh-ed25519@openssh.com": 3,
    "sk-ecdsa-sha2-nistp256@openssh.com": 4,
}


@dataclass(frozen=True)
class KnownKey:
    """One line of a known_hosts file; `where` is its place, for a person."""

    where: str
    marker: str
    names: str
    key_type: str
    blob: bytes


class HostKeys(paramiko.MissingHostKeyPolicy):
    """Judges the keys of one host; paramiko's own reading of known_hosts knows no patterns or markers."""

    def __init__(self, at: SshEndpoint) -> None:
        self._at = at
        # Of these names alone: a file of 20,000 lines is 10 MB as keys, for each host.
        names = {known_name(at), at.host}
        self._known = [
            key
            for file in (*at.known_hosts, *at.global_known_hosts)
            for key in _read(at, file)
            if any(matches(key.names, name) for name in names)
        ]

    def preferred(self) -> tuple[str, ...]:
        """The algorithms to ask for: those of the known keys first, as ssh does; another key would count as changed."""
        wanted: list[str] = []
        for key in self._named(known_name(self._at)):
            if not key.marker:
                wanted += ("rsa-sha2-512", "rsa-sha2-256") if key.key_type == "ssh-rsa" else (key.key_type,)
        usual: tuple[str, ...] = paramiko.Transport._preferred_keys  # type: ignore[attr-defined]
        return tuple(dict.fromkeys([name for name in wanted if name in usual] + list(usual)))

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """Called by paramiko for every key, since it was given none to compare with.

        Raises:
            HostKeyRejected: the key is not known, or not this one.
        """
        at, blob, shown = self._at, key.asbytes(), f"{key.get_name()} {key.fingerprint}"
        if key.get_name() == "ssh-rsa" and key.get_bits() < at.rsa_bits:
            raise connect_errors.short_key(at, shown, key.get_bits())
        named = self._named(known_name(at))
        plain = [one for one in named if not one.marker]
        if not plain and at.host_key_alias is None:
            # ssh accepts the key that it knows for the same name on port 22, and only accepts by it.
            elsewhere = [one for one in self._named(at.host) if one.blob == blob]
            plain = [one for one in elsewhere if not one.marker]
            named += elsewhere
        for one in named:
            if one.marker == "@revoked" and one.blob == blob:
                raise connect_errors.revoked_key(at, shown, one.where)
        if any(one.blob == blob for one in plain):
            return
        if plain:
            # A known key of another type counts as a change too: ssh asks for the known types first.
            same_type = [one for one in plain if one.key_type == key.get_name()]
            raise connect_errors.changed_key(at, shown, (same_type or plain)[0].where)
        authority = any(one.marker == "@cert-authority" for one in named)
        if authority or not at.accept_new_keys:
            raise connect_errors.unknown_key(at, shown, authority=authority)
        self._accept(key)

    def _named(self, name: str) -> list[KnownKey]:
        return [key for key in self._known if matches(key.names, name)]

    def _accept(self, key: paramiko.PKey) -> None:
        if not self._at.known_hosts:
            raise connect_errors.unnoted_key(self._at, f"{key.get_name()} {key.fingerprint}")
        name = known_name(self._at)
        if self._at.hash_known_hosts:
            name = paramiko.HostKeys.hash_host(name.lower())
        line = f"{name} {key.get_name()} {key.get_base64()}\n".encode()
        file = self._at.known_hosts[0]
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with file.open("ab+", buffering=0) as known:
                # The last line of a file that a person edited may lack its end.
                if known.seekable() and known.tell():
                    known.seek(-1, 2)
                    line = line if known.read(1) == b"\n" else b"\n" + line
                _append(known, line)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise HostKeyRejected(
                self._at.name,
                f"cannot note the new key of {self._at.where} in {file}: {error.strerror}",
                hint=command_line("df", Option("-h"), str(file.parent)) if full else f"make {file} writable",
            ) from None


def read_known_hosts(lines: Iterable[str], file: str) -> Iterator[KnownKey]:
    """The usable lines of a known_hosts file; like ssh, what cannot be read is passed over."""
    for number, line in enumerate(lines, 1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#"):
            continue
        with contextlib.suppress(ValueError):
            blob = base64.b64decode(fields[2], validate=True)
            if _is_whole(blob, fields[1]):
                yield KnownKey(f"{file}:{number}", marker, fields[0], fields[1], blob)


def _is_whole(blob: bytes, key_type: str) -> bool:
    """Whether these are all parts of a key of that type: of what a full disk has cut, any length may be base64."""
    parts, at = [], 0
    while at < len(blob):
        begin = at + 4
        at = begin + int.from_bytes(blob[at:begin])
        parts.append(blob[begin:at])
    return at == len(blob) and len(parts) == _PARTS.get(key_type) and parts[0] == key_type.encode()


def _append(known: FileIO, line: bytes) -> None:
    """Add a line, whole or not at all.

    Raises:
        OSError: it cannot be written, as on a full disk.
    """
    written = 0
    try:
        while written < len(line):
            written += known.write(line[written:])
    except OSError:
        with contextlib.suppress(OSError):  # a device has no length
            if known.tell() == known.seek(0, os.SEEK_END):  # else another program has added its line
                known.truncate(known.tell() - written)
        raise


def matches(names: str, host: str) -> bool:
    """Whether the first field of a known_hosts line means `host`."""
    host = host.lower()
    if names.startswith("|1|"):
        with contextlib.suppress(ValueError, AssertionError):  # a salt that cannot be read, or of another length
            return paramiko.HostKeys.hash_host(host, names) == names
        return False
    patterns = names.lower().split(",")
    refused = any(wildcard(pattern[1:], host) for pattern in patterns if pattern.startswith("!"))
    return not refused and any(wildcard(pattern, host) for pattern in patterns if not pattern.startswith("!"))


def _read(at: SshEndpoint, file: Path) -> Iterator[KnownKey]:
    try:
        # A pipe would be waited for, past the deadline of the login.
        number = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(number, encoding="utf-8", errors="replace", newline="\n") as lines:
            _ensure_plain(number)
            yield from read_known_hosts(_bounded(lines), str(file))
    except FileNotFoundError:
        return
    except OSError as error:
        # A file that cannot be read could hold the line that revokes the key.
        closed = error.errno in (errno.EACCES, errno.EPERM)
        hint = f"make {file} readable" if closed else "name another file in ssh_config: UserKnownHostsFile FILE"
        raise HostKeyRejected(at.name, f"cannot read {file}: {error.strerror}", hint=hint) from None


def _bounded(lines: TextIO) -> Iterator[str]:
    """The lines of a file, none longer than one may be; what is left out could revoke the key.

    Raises:
        OSError: one is.
    """
    while line := lines.readline(MAX_LINE + 1):
        if len(line) > MAX_LINE:
            raise OSError(errno.EFBIG, f"a line has more than {MAX_LINE >> 20} MiB")
        yield line


def _ensure_plain(number: int) -> None:
    """Refuse what is not a file, or larger than any that people have; /dev/null is a usual one.

    Raises:
        OSError: it is.
    """
    about = os.fstat(number)
    if not (stat.S_ISREG(about.st_mode) or (stat.S_ISCHR(about.st_mode) and not os.read(number, 1))):
        raise OSError(errno.EINVAL, "it is not a plain file")
    if about.st_size > MAX_KNOWN_HOSTS:
        raise OSError(errno.EFBIG, f"it has more than {MAX_KNOWN_HOSTS >> 20} MiB")


class _Agent(AgentSSH):
    """The agent behind one socket; paramiko's own class knows only SSH_AUTH_SOCK."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(AGENT_SECONDS)
            sock.connect(str(path))
            self._connect(sock)  # type: ignore[attr-defined]
        except BaseException:
            sock.close()
            raise

    def close(self) -> None:
        self._close()  # type: ignore[attr-defined]


class Credentials:
    """Proves the user to one host; paramiko calls `authenticate` once the host's key is accepted."""

    def __init__(self, resolved: SshEndpoint, deadline: Deadline) -> None:
        self._resolved, self._deadline = resolved, deadline
        self._offered: list[str] = []
        self._skipped: list[str] = []
        self._agent: _Agent | None = None

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Offer each key until one is taken.

        Raises:
            AuthenticationFailed: none was.
        """
        try:
            if not self._try_none(transport):
                self._try_keys(transport)
        finally:
            if self._agent is not None:
                self._agent.close()

    def _try_none(self, transport: paramiko.Transport) -> bool:
        # ssh asks so too: some servers (Tailscale's) have let the user in already, the others name what they take.
        try:
            methods = transport.auth_none(self._resolved.user)
        except paramiko.BadAuthenticationType as refusal:
            methods = refusal.allowed_types
        # "None" may also be one of several methods that the server wants.
        if not transport.is_authenticated() and "publickey" not in methods:
            raise connect_errors.no_keys(self._resolved, ", ".join(methods))
        return transport.is_authenticated()

    def _try_keys(self, transport: paramiko.Transport) -> None:
        for name, key in self._keys():
            if why := _unfit(self._resolved, key):
                self._skipped.append(f"{name} ({why})")
                continue
            # paramiko's limit is for each key.
            transport.auth_timeout = min(transport.auth_timeout, self._deadline.left())
            if not self._deadline.left():
                raise self._refused("it did not answer in time")
            self._offered.append(f"{name} {key.fingerprint}")
            try:
                more = transport.auth_publickey(self._resolved.user, key)
            except paramiko.AuthenticationException as refusal:
                if not transport.is_active():
                    raise connect_errors.too_many_keys(self._resolved, self._offered, self._skipped) from None
                if "timeout" in str(refusal).lower():
                    raise self._refused("it did not answer in time") from None
                continue
            except paramiko.SSHException as error:
                if not transport.is_active():
                    raise
                self._skipped.append(f"{name} ({error})")
                continue
            if transport.is_authenticated():
                return
            methods = ", ".join(more) or "another method"
            raise connect_errors.second_factor(self._resolved, methods, self._offered, self._skipped)
        raise self._refused("no offered key was accepted")

    def _keys(self) -> Iterator[tuple[str, paramiko.PKey]]:
        held = {}
        for key in self._agent_keys():
            if key.get_name().startswith(_USABLE):
                held[key.asbytes()] = key
            else:
                self._skipped.append(f"{key.comment or key.get_name()} (from the agent: needs the openssh transport)")
        for path in self._resolved.identities:
            in_agent = held.pop(_public_blob(path) or b"", None)
            if in_agent is not None:
                yield f"{path} (from the agent)", in_agent
            elif (loaded := self._load(path)) is not None:
                yield str(path), loaded
        if not self._resolved.identities_only:
            for key in held.values():
                yield f"{key.comment or key.get_name()} (from the agent)", key

    def _agent_keys(self) -> tuple[AgentKey, ...]:
        path = self._resolved.agent
        if path is None:
            return ()
        try:
            self._agent = _Agent(path)
        except (OSError, paramiko.SSHException) as error:
            self._skipped.append(f"the agent at {path} ({error})")
            return ()
        return self._agent.get_keys()

    def _load(self, path: Path) -> paramiko.PKey | None:
        if not path.is_file():
            return None
        try:
            seen = path.stat()
            if seen.st_size > MAX_KEY:
                raise ValueError("larger than any key")
            # As ssh: a key of one's own that others can read is none.
            if seen.st_uid == os.getuid() and seen.st_mode & 0o077:
                raise ValueError("others may read it: chmod 600")
            return paramiko.PKey.from_path(path)
        except (paramiko.PasswordRequiredException, TypeError):
            # cryptography raises TypeError when a key is encrypted and no passphrase was given.
            self._skipped.append(f"{path} (has a passphrase: ssh-add it)")
        except (OSError, ValueError, paramiko.SSHException, UnknownKeyType) as error:
            self._skipped.append(f"{path} ({str(error) or type(error).__name__})")
        return None

    def _refused(self, why: str) -> AuthenticationFailed:
        return connect_errors.auth_refused(self._resolved, why, self._offered, self._skipped)


def _unfit(at: SshEndpoint, key: paramiko.PKey) -> str:
    """Why ssh would not offer a key; empty where it would."""
    name = key.public_blob.key_type if key.public_blob else key.get_name()
    if "rsa" in name and key.get_bits() < at.rsa_bits:
        return f"it has {key.get_bits()} bits; RequiredRSASize is {at.rsa_bits}"
    signatures = {name.replace("ssh-rsa", one) for one in ("rsa-sha2-512", "rsa-sha2-256")}
    accepted = dict(at.algorithms).get("PubkeyAcceptedAlgorithms")
    if accepted is not None and signatures.isdisjoint(accepted.split(",")):
        return f"PubkeyAcceptedAlgorithms of ssh_config leaves out {name}"
    return ""


def _public_blob(path: Path) -> bytes | None:
    public = path if path.suffix == ".pub" else path.with_name(path.name + ".pub")
    with contextlib.suppress(OSError, ValueError, IndexError):
        return base64.b64decode(beginning(public, MAX_KEY).split()[1])
    return None
