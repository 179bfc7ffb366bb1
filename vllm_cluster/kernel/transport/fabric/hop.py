"""From an open socket to an authenticated connection, with a precise error for each failure."""

from __future__ import annotations

import contextlib
import logging
from typing import NoReturn

import fabric
import paramiko
from paramiko.ssh_exception import IncompatiblePeer

from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.transport import connect_errors
from vllm_cluster.kernel.transport.fabric.dial import STEP_SECONDS
from vllm_cluster.kernel.transport.fabric.keepalive import (
    BROKEN,
    KeepaliveSocket,
    KeepaliveTransport,
    Socket,
)
from vllm_cluster.kernel.transport.fabric.login import Credentials, HostKeys
from vllm_cluster.kernel.transport.fabric.stream import FabricConnection
from vllm_cluster.kernel.transport.ssh_config import SshEndpoint

# Without a handler Python prints paramiko's tracebacks on stderr; each of them is one of our errors already.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


def log_in(resolved: SshEndpoint, sock: Socket, deadline: Deadline, begun: float) -> FabricConnection:
    """Log in over an open socket, which is closed where that fails; `begun` is what was left before it was opened."""
    wire = KeepaliveSocket(sock)
    try:
        known = HostKeys(resolved)
    except BaseException:
        wire.close()
        raise
    step = min(STEP_SECONDS, max(deadline.left(), 0.1))

    def transport(sock: KeepaliveSocket, **options: object) -> KeepaliveTransport:
        made = KeepaliveTransport(sock, key_types=known.preferred(), allowed=dict(resolved.algorithms), **options)
        if word := made.without_any():
            raise connect_errors.only_ssh(resolved, f"ssh_config allows no {word} that Fabric supports")
        return made

    connection = fabric.Connection(
        resolved.host,
        user=resolved.user,
        port=resolved.port,
        # Fabric's own configuration files and its reading of ssh_config would overrule what ssh resolved.
        config=fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True),
        forward_agent=False,
        connect_kwargs={
            "sock": wire,
            "timeout": step,
            "banner_timeout": step,
            "auth_timeout": step,
            "channel_timeout": STEP_SECONDS,
            "auth_strategy": Credentials(resolved, deadline),
            "transport_factory": transport,
        },
    )
    # Fabric accepts and forgets every key by default.
    connection.client.set_missing_host_key_policy(known)
    try:
        connection.open()
    except BaseException as error:
        _abandon(connection, wire)
        if isinstance(error, BROKEN):
            _explain(resolved, error, wire, begun - deadline.left())
        raise
    return FabricConnection(resolved.name, resolved.where, connection, wire)


def _abandon(connection: fabric.Connection, wire: KeepaliveSocket) -> None:
    transport = connection.client.get_transport()
    if transport is not None:
        # A handshake that broke leaves paramiko's timer running, and the program would wait for it at its end.
        transport.packetizer.complete_handshake()
    with contextlib.suppress(*BROKEN):
        connection.client.close()
    wire.close()


def _explain(resolved: SshEndpoint, error: BaseException, wire: KeepaliveSocket, seconds: float) -> NoReturn:
    text = str(error) or type(error).__name__
    proxy = resolved.jump.where if resolved.jump else resolved.proxy_command
    if isinstance(error, IncompatiblePeer) or "Indecipherable" in text:
        raise connect_errors.not_ssh(resolved, text) from error
    if not wire.received and proxy:
        raise connect_errors.proxy_failed(resolved, proxy, wire.failure or "it stays silent") from error
    if wire.failure:
        raise connect_errors.closed_early(resolved) from error
    if "banner" in text and wire.received:
        raise connect_errors.not_ssh(resolved, "its first line is none of SSH") from error
    if "timed out" in text or "banner" in text or "existing session" in text:
        raise connect_errors.no_answer(resolved, seconds) from error
    raise connect_errors.not_ssh(resolved, text) from error
