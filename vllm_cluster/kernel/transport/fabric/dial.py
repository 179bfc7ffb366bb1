"""The way to a host's port, and who logs in there: what needs no Fabric."""

from __future__ import annotations

import queue
import socket
import sys
import threading
from typing import TYPE_CHECKING

from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import Unreachable
from vllm_cluster.kernel.transport import connect_errors
from vllm_cluster.kernel.transport.jumps import Jumps
from vllm_cluster.kernel.transport.process import proxy_socket
from vllm_cluster.kernel.transport.ssh_config import SshEndpoint, expand

if TYPE_CHECKING:
    from vllm_cluster.kernel.transport.fabric.keepalive import Socket
    from vllm_cluster.kernel.transport.fabric.stream import FabricConnection

STEP_SECONDS = 10.0
SILENCE_SECONDS = 15.0
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
# macOS's name for it is TCP_RXT_CONNDROPTIME, in seconds; Python names neither there.
_MACOS_DROP_TIME = 0x80


def open_connection(resolved: SshEndpoint, jumps: Jumps, deadline: Deadline) -> FabricConnection:
    """The connection to a host, through its jump hosts."""
    jump, through = resolved.jump, None
    if jump is not None:
        through = jumps.through(jump, lambda: open_connection(jump, jumps, deadline), deadline)
    return connect_errors.connect_with_retry(
        lambda: _open(resolved, through, deadline.sooner(2 * STEP_SECONDS)), deadline
    )


def _open(resolved: SshEndpoint, through: FabricConnection | None, deadline: Deadline) -> FabricConnection:
    if resolved.only_ssh:
        raise connect_errors.only_ssh(resolved, f"ssh_config has {resolved.only_ssh}, which only ssh can follow")
    begun = deadline.left()
    sock = _socket(resolved, through, deadline)
    # Fabric takes a quarter of the processor time before the first answer to import: the host greets meanwhile.
    from vllm_cluster.kernel.transport.fabric.hop import log_in  # noqa: PLC0415

    return log_in(resolved, sock, deadline, begun)


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
    except through.REFUSED as error:
        raise connect_errors.proxy_failed(resolved, proxy, error.text) from None
    except through.BROKEN as error:
        raise connect_errors.proxy_failed(resolved, proxy, str(error)) from None
    return channel


def _addresses(resolved: SshEndpoint, deadline: Deadline) -> list[tuple[int, tuple[object, ...]]]:
    # The system's resolver takes no time limit, so it is asked on a thread that may be left behind.
    answers: queue.SimpleQueue[list[tuple[int, tuple[object, ...]]] | OSError] = queue.SimpleQueue()

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


def _dial(family: int, address: tuple[object, ...], bind: str | None, seconds: float) -> socket.socket:
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
