"""From a resolved host to an authenticated connection, with a precise error for each failure."""

from __future__ import annotations

import contextlib
import functools
import logging
import queue
import socket
import sys
import threading
from typing import Any, NoReturn, cast

import fabric
import paramiko
from paramiko.ssh_exception import IncompatiblePeer

from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import HostKeyRejected, Unreachable
from vllm_cluster.kernel.transport import connect_errors
from vllm_cluster.kernel.transport.fabric.keepalive import (
    BROKEN,
    SILENCE_SECONDS,
    KeepaliveSocket,
    KeepaliveTransport,
    Socket,
)
from vllm_cluster.kernel.transport.fabric.login import Credentials, HostKeys
from vllm_cluster.kernel.transport.fabric.stream import FabricConnection
from vllm_cluster.kernel.transport.jumps import Jumps
from vllm_cluster.kernel.transport.process import proxy_socket
from vllm_cluster.kernel.transport.ssh_config import SshEndpoint, expand

STEP_SECONDS = 10.0
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
# macOS's name for it is TCP_RXT_CONNDROPTIME, in seconds; Python names neither there.
_MACOS_DROP_TIME = 0x80

# Without a handler Python prints paramiko's tracebacks on stderr; each of them is one of our errors already.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


def open_connection(resolved: SshEndpoint, jumps: Jumps, deadline: Deadline) -> FabricConnection:
    """The connection to a host, through its jump hosts."""
    jump, through = resolved.jump, None
    if jump is not None:
        through = jumps.through(jump, lambda: open_connection(jump, jumps, deadline), deadline)
    return connect_errors.connect_with_retry(
        lambda: _open(resolved, through, deadline.sooner(2 * STEP_SECONDS)), deadline
    )


def _open(resolved: SshEndpoint, through: FabricConnection | None, deadline: Deadline) -> FabricConnection:
    if resolved.revoked_keys:
        raise HostKeyRejected(
            resolved.name,
            f"ssh_config names RevokedHostKeys {resolved.revoked_keys}, which only ssh can read",
            hint="choose the openssh transport for this host",
        )
    known, begun = HostKeys(resolved), deadline.left()
    wire = KeepaliveSocket(_socket(resolved, through, deadline))
    step = min(STEP_SECONDS, max(deadline.left(), 0.1))
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
            "auth_strategy": Credentials(resolved),
            "transport_factory": functools.partial(KeepaliveTransport, key_types=known.preferred()),
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


def _socket(resolved: SshEndpoint, through: FabricConnection | None, deadline: Deadline) -> Socket:
    if through is not None:
        return _channel(resolved, through, deadline)
    if resolved.proxy_command:
        return proxy_socket(expand(resolved.proxy_command, resolved))
    failure: Unreachable | None = None
    begun = deadline.left()
    for family, address in _addresses(resolved, deadline):
        try:
            return _dial(family, address, resolved.bind_address, min(STEP_SECONDS, deadline.left()))
        except ConnectionRefusedError:
            failure = connect_errors.nothing_listens(resolved)
        except TimeoutError:
            failure = failure or connect_errors.no_answer(resolved, begun - deadline.left())
        except OSError as error:
            failure = failure or connect_errors.no_route(resolved, error.strerror or str(error))
    raise failure or connect_errors.no_name(resolved)


def _channel(resolved: SshEndpoint, through: FabricConnection, deadline: Deadline) -> Socket:
    proxy = f"the jump host {through.where}"
    try:
        channel = through.session.open_channel(
            "direct-tcpip",
            (resolved.host, resolved.port),
            ("127.0.0.1", 0),
            timeout=min(STEP_SECONDS, deadline.left()),
        )
    except paramiko.ChannelException as error:
        raise connect_errors.proxy_failed(resolved, proxy, error.text) from None
    except BROKEN as error:
        raise connect_errors.proxy_failed(resolved, proxy, str(error)) from None
    return cast(Socket, channel)


def _addresses(resolved: SshEndpoint, deadline: Deadline) -> list[tuple[int, Any]]:
    # The system's resolver takes no time limit, so it is asked on a thread that may be left behind.
    answers: queue.SimpleQueue[list[tuple[int, Any]] | OSError] = queue.SimpleQueue()

    def look_up() -> None:
        family = _FAMILIES.get(resolved.address_family, socket.AF_UNSPEC)
        try:
            found = socket.getaddrinfo(resolved.host, resolved.port, family, socket.SOCK_STREAM)
            answers.put([(family, address) for family, _, _, _, address in found])
        except (OSError, UnicodeError) as error:
            answers.put(OSError(str(error)) if isinstance(error, UnicodeError) else error)

    threading.Thread(target=look_up, daemon=True).start()
    try:
        answer = answers.get(timeout=min(STEP_SECONDS, deadline.left()))
    except queue.Empty:
        raise connect_errors.no_name(resolved, "the name server does not answer") from None
    if isinstance(answer, OSError):
        raise connect_errors.no_name(resolved, answer.strerror or str(answer))
    return answer


def _dial(family: int, address: Any, bind: str | None, seconds: float) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(max(seconds, 0.01))
        if bind:
            sock.bind((bind, 0))
        sock.connect(address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SILENCE_SECONDS * 1000))
        elif sys.platform == "darwin":
            sock.setsockopt(socket.IPPROTO_TCP, _MACOS_DROP_TIME, int(SILENCE_SECONDS))
    except BaseException:
        sock.close()
        raise
    return sock


def _explain(resolved: SshEndpoint, error: BaseException, wire: KeepaliveSocket, seconds: float) -> NoReturn:
    text = str(error) or type(error).__name__
    proxy = resolved.jump.where if resolved.jump else resolved.proxy_command
    if isinstance(error, IncompatiblePeer) or "Indecipherable" in text:
        raise connect_errors.not_ssh(resolved, text) from error
    if not wire.received and proxy:
        raise connect_errors.proxy_failed(resolved, proxy, wire.failure or "it stays silent") from error
    if wire.failure:
        raise connect_errors.closed_early(resolved) from error
    if "timed out" in text or "banner" in text or "existing session" in text:
        raise connect_errors.no_answer(resolved, seconds) from error
    raise connect_errors.not_ssh(resolved, text) from error
