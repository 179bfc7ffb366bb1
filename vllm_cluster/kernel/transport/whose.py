"""Whose a client on this machine is, by the kernel's answer for that one connection."""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import Literal, NamedTuple, TypeAlias

Address: TypeAlias = tuple[str, int]
Whose: TypeAlias = Literal["own", "another's", "gone"]

# Of linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
_SOCK_DIAG, _BY_FAMILY, _REQUEST, _ERROR = 4, 20, 1, 2
_HEADER, _ASK, _ID = (struct.Struct(form) for form in ("=IHHII", "=BBBBI", "!HH4s12x4s12x"))
# Of a socket: its ports in the order of the network, and after what is of no use here the user and the inode.
_PORTS, _USER = struct.Struct("!4xHH"), struct.Struct("=64xII")
_ANY_STATE = 0xFFFFFFFF
# The interface, and a socket of which no number is known yet.
_REST, _ANY_SOCKET = struct.Struct("=III"), (0xFFFFFFFF, 0xFFFFFFFF)
# Else a client that is served would be one that could not be asked for.
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
# Of linux/tcp.h; and the number of the loopback in each network of Linux.
ESTABLISHED, LOOPBACK_INTERFACE = 1, 1


class _TcpSocket(NamedTuple):
    """What the kernel knows of a socket; without an inode no program holds it any more."""

    ports: tuple[int, ...]
    user: int
    inode: int


def whose(client: Address, accepted: socket.socket) -> Whose:
    """Whose the client of a connection on 127.0.0.1 is.

    `own` also where the kernel does not answer that: outside Linux, or without its module tcp_diag. A list of all
    sockets would do as well, but everyone makes that as long as they like, and a client may be in that of IPv6.

    Raises:
        OSError: this process or the machine has no room for the question.
    """
    try:
        server = accepted.getsockname()
        # A client that is bound to the interface is found with that alone.
        for interface in (0, LOOPBACK_INTERFACE):
            found = _socket_at(client, server, interface)
            if found and found.ports == (client[1], server[1]) and found.inode:
                return "own" if found.user == os.getuid() else "another's"
        # Where the kernel answers, it finds who listens here.
        if not _socket_at(server, client):
            return "own"
        # One that comes through a translation of addresses, as from a container, is another socket to the kernel.
        state = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        return "another's" if state == ESTABLISHED else "gone"
    except AttributeError:
        return "own"
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        return "own"


def _socket_at(local: Address, far: Address, interface: int = 0) -> _TcpSocket | None:
    """The socket of one end of a connection, or else one that listens there."""
    ports, hosts = (local[1], far[1]), (socket.inet_aton(host) for host, _ in (local, far))
    ask = (
        _ASK.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 0, _ANY_STATE)
        + _ID.pack(*ports, *hosts)
        + _REST.pack(interface, *_ANY_SOCKET)
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.send(_HEADER.pack(_HEADER.size + len(ask), _BY_FAMILY, _REQUEST, 0, 0) + ask)
        answer = kernel.recv(4096, socket.MSG_DONTWAIT)
    if _HEADER.unpack_from(answer)[1] == _ERROR:
        return None
    return _TcpSocket(_PORTS.unpack_from(answer, _HEADER.size), *_USER.unpack_from(answer, _HEADER.size))
