"""The judgement on a host's key, in the place where paramiko asks for it."""

from __future__ import annotations

from pathlib import Path

import paramiko

from vllm_cluster.errors import HostKeyRejected
from vllm_cluster.laptop import expanded
from vllm_cluster.transport import connect_errors, host_keys
from vllm_cluster.transport.host_keys import KeyStatus
from vllm_cluster.transport.ssh_config import SshEndpoint


class HostKeys(paramiko.MissingHostKeyPolicy):
    """Judges a host's key by the known_hosts files; paramiko's own reading of them knows no patterns or markers."""

    def __init__(self, resolved: SshEndpoint) -> None:
        self._at = resolved
        self._known = [key for file in resolved.known_hosts for key in _read(resolved, file)]

    def preferred(self) -> tuple[str, ...]:
        """The algorithms to ask for: those of the known keys first, so that another key is not called a change."""
        kinds = host_keys.known_types(self._known, self._at.host, self._at.port, self._at.host_key_alias)
        wanted: list[str] = []
        for kind in kinds:
            wanted += ("rsa-sha2-512", "rsa-sha2-256") if kind == "ssh-rsa" else (kind,)
        usual: tuple[str, ...] = paramiko.Transport._preferred_keys  # type: ignore[attr-defined]
        return tuple(dict.fromkeys([name for name in wanted if name in usual] + list(usual)))

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """Called by paramiko for every key, since it was given none to compare with.

        Raises:
            HostKeyRejected: the key is not known, or not this one.
        """
        at, blob = self._at, key.asbytes()
        judgement = host_keys.check_key(self._known, at.host, at.port, at.host_key_alias, blob)
        shown = f"{host_keys.key_type(blob)} {host_keys.fingerprint(blob)}"
        line = judgement.line.where if judgement.line else ""
        match judgement.verdict:
            case KeyStatus.CHANGED:
                raise connect_errors.changed_key(at, shown, line)
            case KeyStatus.REVOKED:
                raise connect_errors.revoked_key(at, shown, line)
            case KeyStatus.UNKNOWN:
                if judgement.authority or not at.accept_new_keys:
                    raise connect_errors.unknown_key(at, shown, authority=judgement.authority)
                self._accept(blob)

    def _accept(self, blob: bytes) -> None:
        name = host_keys.lookup_name(self._at.host, self._at.port, self._at.host_key_alias)
        line = host_keys.entry(name, blob, hashed=self._at.hash_known_hosts).encode()
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


def _read(resolved: SshEndpoint, file: Path) -> list[host_keys.KnownKey]:
    try:
        return host_keys.parse(file.read_text("utf-8", "replace"), str(file))
    except FileNotFoundError:
        return []
    except OSError as error:
        # A file that cannot be read could hold the line that revokes the key.
        raise HostKeyRejected(
            resolved.name, f"cannot read {file}: {error.strerror}", hint=f"make {file} readable"
        ) from None
