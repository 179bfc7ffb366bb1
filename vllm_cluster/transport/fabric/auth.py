"""Authentication: agent and key files in ssh's order, and an error that lists the offered keys."""

from __future__ import annotations

import base64
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import paramiko
from paramiko.agent import AgentKey, AgentSSH
from paramiko.pkey import UnknownKeyType

from vllm_cluster.errors import AuthenticationFailed
from vllm_cluster.transport import connect_errors
from vllm_cluster.transport.ssh_config import SshEndpoint

AGENT_SECONDS = 10.0
# Hardware keys (sk-…) are known to the agent, but signing with them breaks paramiko.
_USABLE = ("ssh-ed25519", "ssh-rsa", "ecdsa-sha2-")


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

    def __init__(self, resolved: SshEndpoint) -> None:
        self._resolved = resolved
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
            transport.auth_none(self._resolved.user)
        except paramiko.BadAuthenticationType as refusal:
            if "publickey" not in refusal.allowed_types:
                raise connect_errors.no_keys(self._resolved, ", ".join(refusal.allowed_types)) from None
            return False
        return True

    def _try_keys(self, transport: paramiko.Transport) -> None:
        for name, key in self._keys():
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
            if more:
                raise connect_errors.second_factor(self._resolved, ", ".join(more), self._offered, self._skipped)
            return
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
            return paramiko.PKey.from_path(path)
        except (paramiko.PasswordRequiredException, TypeError):
            # cryptography raises TypeError when a key is encrypted and no passphrase was given.
            self._skipped.append(f"{path} (has a passphrase: ssh-add it)")
        except (OSError, ValueError, paramiko.SSHException, UnknownKeyType) as error:
            self._skipped.append(f"{path} ({str(error) or type(error).__name__})")
        return None

    def _refused(self, why: str) -> AuthenticationFailed:
        return connect_errors.auth_refused(self._resolved, why, self._offered, self._skipped)


def _public_blob(path: Path) -> bytes | None:
    public = path if path.suffix == ".pub" else path.with_name(path.name + ".pub")
    with contextlib.suppress(OSError, ValueError, IndexError):
        return base64.b64decode(public.read_text("utf-8").split()[1])
    return None
