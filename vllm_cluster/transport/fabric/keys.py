"""The judgement on a host's key by known_hosts, with the same result as ssh, in the place where paramiko asks for it.

paramiko's own reading of known_hosts knows no patterns or markers.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import paramiko

from vllm_cluster.errors import HostKeyRejected
from vllm_cluster.laptop import expanded
from vllm_cluster.transport import connect_errors
from vllm_cluster.transport.ssh_config import SshEndpoint, known_name


@dataclass(frozen=True)
class KnownKey:
    """One line of a known_hosts file; `where` is its place, for a person."""

    where: str
    marker: str
    names: str
    key_type: str
    blob: bytes


class HostKeys(paramiko.MissingHostKeyPolicy):
    """Judges the keys of one host."""

    def __init__(self, at: SshEndpoint) -> None:
        self._at = at
        self._known = [key for file in at.known_hosts for key in _read(at, file)]

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
        name = known_name(self._at)
        if self._at.hash_known_hosts:
            name = paramiko.HostKeys.hash_host(name.lower())
        line = f"{name} {key.get_name()} {key.get_base64()}\n".encode()
        file = self._at.known_hosts[0] if self._at.known_hosts else expanded("~/.ssh/known_hosts")
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with file.open("ab+") as known:
                # The last line of a file that a person edited may lack its end.
                if known.seekable() and known.tell():
                    known.seek(-1, 2)
                    line = line if known.read(1) == b"\n" else b"\n" + line
                known.write(line)
        except OSError as error:
            raise HostKeyRejected(
                self._at.name,
                f"cannot note the new key of {self._at.where} in {file}: {error.strerror}",
                hint=f"make {file} writable",
            ) from None


def parse(text: str, file: str) -> list[KnownKey]:
    """The usable lines of a known_hosts file; like ssh, what cannot be read is passed over."""
    keys = []
    for number, line in enumerate(text.split("\n"), 1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#"):
            continue
        with suppress(ValueError):
            blob = base64.b64decode(fields[2], validate=True)
            keys.append(KnownKey(f"{file}:{number}", marker, fields[0], fields[1], blob))
    return keys


def matches(names: str, host: str) -> bool:
    """Whether the first field of a known_hosts line means `host`."""
    host = host.lower()
    if names.startswith("|1|"):
        with suppress(ValueError, AssertionError):  # a salt that cannot be read, or of another length
            return paramiko.HostKeys.hash_host(host, names) == names
        return False
    patterns = names.lower().split(",")
    refused = any(_wildcard(pattern[1:], host) for pattern in patterns if pattern.startswith("!"))
    return not refused and any(_wildcard(pattern, host) for pattern in patterns if not pattern.startswith("!"))


def _wildcard(pattern: str, text: str) -> bool:
    # Not fnmatch: brackets are part of a name here ("[host]:port"), not a set of characters.
    regex = "".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in pattern)
    return re.fullmatch(regex, text, re.DOTALL) is not None


def _read(at: SshEndpoint, file: Path) -> Sequence[KnownKey]:
    try:
        return parse(file.read_text("utf-8", "replace"), str(file))
    except FileNotFoundError:
        return ()
    except OSError as error:
        # A file that cannot be read could hold the line that revokes the key.
        raise HostKeyRejected(at.name, f"cannot read {file}: {error.strerror}", hint=f"make {file} readable") from None
