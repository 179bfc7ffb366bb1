"""Whose a listener of this machine is: the key is shown to programs of the same user alone."""

from __future__ import annotations

import ipaddress
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_LISTEN = "0A"  # the state of a socket in /proc/net/tcp


def is_own_listener(address: str, port: int) -> bool:
    """Whether a program of this user listens at exactly this address: nothing else can answer there then."""
    local, user = _place(address, port), str(os.getuid())
    # Listeners come first: of thousands of connections behind them nothing is read.
    return any(row[1] == local and row[3] == _LISTEN and row[7] == user for row in _sockets(address))


def _place(address: str, port: int) -> str:
    """As proc(5) has it: words of 32 bits in the order of this machine, in hex."""
    packed = ipaddress.ip_address(address).packed
    return "".join(f"{word:08X}" for word in struct.unpack(f"={len(packed) // 4}I", packed)) + f":{port:04X}"


def _sockets(address: str) -> Iterator[list[str]]:
    """The rows of this machine's sockets of the address's family; none where there is no such list."""
    with suppress(OSError), Path(f"/proc/self/net/{'tcp6' if ':' in address else 'tcp'}").open() as lines:
        yield from map(str.split, lines)


def connect_to_own_only() -> None:
    """Refuse, from now on, each connection of this process to where no program of its user listens.

    For a program that shows the API key: once what should answer has ended, another user of the host may listen there.
    An audit hook, so that it holds for vLLM's own client too.
    """

    def refuse(event: str, values: tuple[object, ...]) -> None:
        if event == "socket.connect" and isinstance(at := values[1], tuple) and not is_own_listener(*at[:2]):
            raise ConnectionRefusedError(f"no program of this user listens at {at[0]}:{at[1]}")

    sys.addaudithook(refuse)
