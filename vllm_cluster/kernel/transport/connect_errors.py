"""Errors of connecting: one sentence each, with the remedy, the same for all transports."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import AuthenticationFailed, HostKeyRejected, NoSession, OpenSshNeeded, Unreachable
from vllm_cluster.kernel.shell_line import Option, command_line, typed_words
from vllm_cluster.kernel.transport.ssh_config import SshEndpoint, known_name

T = TypeVar("T")

ATTEMPTS = 6
AGAIN = "run the same command again"


# From `ssh -G` without a configuration, OpenSSH 5 to 10.
_DEFAULT_KEYS = frozenset(f"id_{kind}" for kind in ("dsa", "rsa", "ecdsa", "ecdsa_sk", "ed25519", "ed25519_sk", "xmss"))


def unknown_key(at: SshEndpoint, shown: str, *, authority: bool = False) -> HostKeyRejected:
    """The host shows a key that no known_hosts file has."""
    if authority:
        return HostKeyRejected(
            at.name,
            f"known_hosts trusts {at.where} by a certificate authority only, and it shows the plain key {shown}",
            hint="choose the openssh transport for this host: it checks host certificates",
        )
    return HostKeyRejected(
        at.name,
        f"the key of {at.where} is not known: {shown}",
        hint="compare it with what this shows on the console of the host: "
        f"ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub\nthen connect once by hand: {_by_hand(at)}",
    )


def unnoted_key(at: SshEndpoint, shown: str) -> HostKeyRejected:
    """The host shows a key that would be accepted, and there is no file of the user's to note it in."""
    return HostKeyRejected(
        at.name,
        f"the key of {at.where} is not known, and ssh_config has no UserKnownHostsFile to store it in: {shown}",
        hint=f"set UserKnownHostsFile FILE for {at.destination} in ssh_config",
    )


def refused_certificate(at: SshEndpoint) -> HostKeyRejected:
    """The host shows a certificate that ssh does not accept."""
    return HostKeyRejected(
        at.name, f"ssh does not accept the host certificate of {at.where}", hint=f"see why: {_by_hand(at)}"
    )


def changed_key(at: SshEndpoint, shown: str, line: str) -> HostKeyRejected:
    """The host shows another key than the one in `line` (file:number) of known_hosts."""
    file = line.rpartition(":")[0]
    forget = command_line("ssh-keygen", Option("-f"), file, Option("-R"), known_name(at))
    return HostKeyRejected(
        at.name,
        f"the key of {at.where} is not the one in {line}: it shows {shown}; "
        "the host was reinstalled, or this is a man-in-the-middle attack",
        hint=f"if the host was reinstalled: {forget}",
    )


def short_key(at: SshEndpoint, shown: str, bits: int) -> HostKeyRejected:
    """The host's RSA key is shorter than ssh_config allows."""
    return HostKeyRejected(
        at.name,
        f"the key of {at.where}, {shown}, has {bits} bits; ssh accepts RSA keys from {at.rsa_bits} bits on "
        "(RequiredRSASize)",
        hint="give the host a longer RSA key, or a key of another type",
    )


def only_ssh(at: SshEndpoint, why: str) -> OpenSshNeeded:
    """The host's ssh_config asks for what Fabric cannot do."""
    return OpenSshNeeded(at.name, why, hint="set ssh.transport: openssh in the inventory")


def revoked_key(at: SshEndpoint, shown: str, line: str) -> HostKeyRejected:
    """The key is marked as revoked."""
    return HostKeyRejected(
        at.name,
        f"the key of {at.where}, {shown}, is revoked by {line}",
        hint="give the host a new key; a revoked one may be in other hands",
    )


def too_many_keys(at: SshEndpoint, offered: list[str], skipped: list[str]) -> AuthenticationFailed:
    """The host ended the login before the right key was offered."""
    hint = (
        f"offer one key alone: in ssh_config, for {at.destination}: IdentityFile KEY and IdentitiesOnly yes; "
        "or take the others out of the agent: ssh-add -D"
    )
    return auth_refused(at, "it closed the connection after too many keys (MaxAuthTries)", offered, skipped, hint)


def second_factor(at: SshEndpoint, methods: str, offered: list[str], skipped: list[str]) -> AuthenticationFailed:
    """The host took a key and wants more, which no program can give."""
    hint = f"let a key be enough, in its sshd_config: Match User {at.user}, AuthenticationMethods publickey"
    return auth_refused(at, f"a key was accepted, but {methods} is also required", offered, skipped, hint)


def no_keys(at: SshEndpoint, methods: str) -> AuthenticationFailed:
    """The host takes no keys at all."""
    return auth_refused(
        at, f"it accepts only {methods}, no keys", [], [], "set PubkeyAuthentication yes in its sshd_config"
    )


def auth_refused(
    at: SshEndpoint, why: str, offered: list[str], skipped: list[str], hint: str | None = None
) -> AuthenticationFailed:
    """The host answered and rejected the login."""
    # ssh itself always tries its default names, and no user asked for those.
    named = [path for path in at.identities if not (path.parent.name == ".ssh" and path.name in _DEFAULT_KEYS)]
    skipped = [*skipped, *(f"{path} (no such file)" for path in named if not path.exists())]
    also = f"; left out: {', '.join(skipped)}" if skipped else ""
    return AuthenticationFailed(
        at.name,
        f"authentication failed for {at.where}: {why}; offered: {', '.join(offered) or 'nothing'}{also}",
        hint=hint
        or f"put your public key there ({_copy_id(at)}), or give the right user and key for {at.name}; "
        "hardware keys and Kerberos need the openssh transport",
    )


def nothing_listens(at: SshEndpoint) -> Unreachable:
    """The port is closed."""
    return Unreachable(
        at.name,
        f"nothing listens on {at.host}:{at.port} (connection refused)",
        hint=f"start the host or its sshd, or correct the address or port of {at.name}",
    )


def no_answer(at: SshEndpoint, seconds: float) -> Unreachable:
    """Packets vanish."""
    return Unreachable(
        at.name,
        f"no answer from {at.host}:{at.port} within {seconds:.0f} s",
        hint=f"check that the host is up and that no firewall blocks port {at.port}: "
        + command_line("nc", Option("-vz"), at.host, str(at.port)),
    )


def no_route(at: SshEndpoint, why: str) -> Unreachable:
    """The network has no way there."""
    return Unreachable(
        at.name,
        f"no route to {at.host}:{at.port}: {why}",
        hint="check that the host is up and that this machine is on its network or VPN",
    )


def no_name(at: SshEndpoint, why: str = "") -> Unreachable:
    """The name has no address."""
    detail = f" ({why})" if why else ""
    return Unreachable(
        at.name,
        f"cannot resolve host name {at.host}{detail}",
        # The same for each host: of many it is one line, since each error names its own.
        hint="correct the host's ssh address in the inventory, or give it a HostName in ssh_config",
    )


class ClosedBeforeLogin(Unreachable):
    """The server closed the connection before the login: it may take the next one."""

    code = "closed-before-login"


def connect_with_retry(connect: Callable[[], T], deadline: Deadline) -> T:
    """Connect, and again after a moment when the server had too much to do.

    sshd drops new connections at random while ten logins are under way, which many hosts behind one bastion are.
    """
    for attempt in range(1, ATTEMPTS):
        try:
            return connect()
        except ClosedBeforeLogin:
            pause = random.uniform(0.1, 0.5) * attempt  # noqa: S311 - spreads the attempts, hides nothing
            if deadline.left() <= pause:
                raise
            time.sleep(pause)
    return connect()


def closed_early(at: SshEndpoint) -> ClosedBeforeLogin:
    """The server hung up before the login."""
    return ClosedBeforeLogin(
        at.name,
        f"{at.host}:{at.port} closed the connection before the login",
        hint="its sshd may have too many logins under way (raise MaxStartups), or refuse this address; see its log",
    )


def not_ssh(at: SshEndpoint, why: str) -> Unreachable:
    """The port is not sshd's, or no algorithm is common to both sides."""
    return Unreachable(
        at.name,
        f"SSH handshake with {at.host}:{at.port} failed: {why}",
        hint=f"check that sshd uses this port; choose the openssh transport if this works: {_by_hand(at)}",
    )


def proxy_failed(at: SshEndpoint, proxy: str, why: str) -> Unreachable:
    """The way there, through another host or a command, does not lead to the host."""
    return Unreachable(
        at.name,
        f"cannot reach {at.host}:{at.port} through {proxy}: {why}",
        hint=f"try by hand: {_by_hand(at)}",
    )


def lost_at_once(at: SshEndpoint, why: str) -> Unreachable:
    """The connection ended after the login, before any command began."""
    return Unreachable(at.name, f"the connection to {at.where} was lost: {why}", hint=AGAIN)


def no_session(name: str, where: str) -> NoSession:
    """The server opens no further session on the connection."""
    return NoSession(
        name,
        f"sshd at {where} opens no more sessions on this connection",
        hint="set MaxSessions of that sshd to 10 (its default) or more",
    )


def _by_hand(at: SshEndpoint) -> str:
    return command_line("ssh", *typed_words(at.options), at.destination)


def _copy_id(at: SshEndpoint) -> str:
    """The same for ssh-copy-id, which takes -F, -p and -i as ssh does, and the rest as options."""
    words = list(at.options)
    for flag, option in (("-l", "User"), ("-J", "ProxyJump")):
        if flag in words[::2]:
            place = words[::2].index(flag) * 2
            words[place : place + 2] = ["-o", f"{option}={words[place + 1]}"]
    return command_line("ssh-copy-id", *typed_words(words), at.destination)
