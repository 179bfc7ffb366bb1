"""Ports of this machine's loopback for tests."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

# Below what the kernel hands out by itself (32768 and more on Linux), or an outgoing connection, or another test's
# server on port 0, takes the port between this look and its use.
FIRST, LAST = 10_000, 32_000


def free_port() -> int:
    """A port that no program listens on."""
    for port in random.sample(range(FIRST, LAST), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError(f"100 ports between {FIRST} and {LAST} are taken")


def is_ended(client: socket.socket) -> bool:
    """Whether what a client sends is not taken any more."""
    try:
        client.sendall(b"x")
    except (BrokenPipeError, ConnectionResetError):
        return True
    return False
