"""Check a host key against known_hosts with the same result as ssh; no I/O."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

DEFAULT_PORT = 22


class KeyStatus(Enum):
    """What to do with a host's key."""

    OK = "ok"
    UNKNOWN = "unknown"
    CHANGED = "changed"
    REVOKED = "revoked"


@dataclass(frozen=True)
class KnownKey:
    """One line of a known_hosts file."""

    file: str
    line: int
    marker: str
    names: str
    key_type: str
    blob: bytes

    @property
    def where(self) -> str:
        """The line's place, for a person."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class KeyCheck:
    """The verdict and the line that decided it; `authority` is true if only a certificate authority is known."""

    verdict: KeyStatus
    line: KnownKey | None = None
    authority: bool = False


def lookup_name(host: str, port: int, alias: str | None = None) -> str:
    """The name under which known_hosts keeps a host."""
    if alias:
        return alias
    return host if port == DEFAULT_PORT else f"[{host}]:{port}"


def parse(text: str, file: str) -> list[KnownKey]:
    """The usable lines of a known_hosts file; like ssh, what cannot be read is passed over."""
    keys = []
    for number, line in enumerate(text.split("\n"), 1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#"):
            continue
        try:
            blob = base64.b64decode(fields[2], validate=True)
        except ValueError:
            continue
        keys.append(KnownKey(file, number, marker, fields[0], fields[1], blob))
    return keys


def check_key(keys: Iterable[KnownKey], host: str, port: int, alias: str | None, blob: bytes) -> KeyCheck:
    """The verdict on the key `blob` that `host` shows on `port`."""
    keys = list(keys)
    found = _check_name(keys, lookup_name(host, port, alias), blob)
    if found.verdict is KeyStatus.UNKNOWN and alias is None and port != DEFAULT_PORT:
        # ssh accepts the key that it knows for the same name on port 22, and only accepts by it.
        plain = _check_name(keys, host, blob)
        if plain.verdict in (KeyStatus.OK, KeyStatus.REVOKED):
            return plain
    return found


def known_types(keys: Iterable[KnownKey], host: str, port: int, alias: str | None) -> tuple[str, ...]:
    """The types of key that are known for a host: to ask for these first, as ssh does."""
    name = lookup_name(host, port, alias)
    return tuple(dict.fromkeys(k.key_type for k in keys if not k.marker and matches(k.names, name)))


def matches(names: str, host: str) -> bool:
    """Whether the first field of a known_hosts line means `host`."""
    host = host.lower()
    if names.startswith("|1|"):
        return _hash_matches(names, host)
    hit = False
    for pattern in names.lower().split(","):
        if pattern.startswith("!"):
            if _wildcard(pattern[1:], host):
                return False
        elif _wildcard(pattern, host):
            hit = True
    return hit


def fingerprint(blob: bytes) -> str:
    """A key's fingerprint, written as ssh writes it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def key_type(blob: bytes) -> str:
    """The type that a key names itself."""
    size = int.from_bytes(blob[:4], "big")
    return blob[4 : 4 + size].decode("ascii", "replace")


def entry(name: str, blob: bytes, *, hashed: bool) -> str:
    """The known_hosts line for a key."""
    if hashed:
        salt = os.urandom(20)
        digest = hmac.new(salt, name.lower().encode(), hashlib.sha1).digest()
        name = f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
    return f"{name} {key_type(blob)} {base64.b64encode(blob).decode()}\n"


def _check_name(keys: Sequence[KnownKey], name: str, blob: bytes) -> KeyCheck:
    mine = [key for key in keys if matches(key.names, name)]
    for key in mine:
        if key.marker == "@revoked" and key.blob == blob:
            return KeyCheck(KeyStatus.REVOKED, key)
    plain = [key for key in mine if not key.marker]
    for key in plain:
        if key.blob == blob:
            return KeyCheck(KeyStatus.OK, key)
    if plain:
        # A known key of another type counts as a change too: ssh asks for the known types first.
        same_type = [key for key in plain if key.key_type == key_type(blob)]
        return KeyCheck(KeyStatus.CHANGED, (same_type or plain)[0])
    return KeyCheck(KeyStatus.UNKNOWN, authority=any(key.marker == "@cert-authority" for key in mine))


def _hash_matches(names: str, host: str) -> bool:
    parts = names.split("|")
    if len(parts) != 4:
        return False
    try:
        salt, digest = base64.b64decode(parts[2]), base64.b64decode(parts[3])
    except ValueError:
        return False
    return hmac.compare_digest(hmac.new(salt, host.encode(), hashlib.sha1).digest(), digest)


def _wildcard(pattern: str, text: str) -> bool:
    # Not fnmatch: brackets are part of a name here ("[host]:port"), not a set of characters.
    regex = "".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in pattern)
    return re.fullmatch(regex, text, re.DOTALL) is not None
