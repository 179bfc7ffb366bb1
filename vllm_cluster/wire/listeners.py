"""Who listens on this machine: the key is shown to programs of the same user alone."""

from __future__ import annotations

import ipaddress
import os
import struct
import sys
from pathlib import Path

_LISTEN = "0A"  # the state of a socket in /proc/net/tcp


def is_own_listener(address: str, port: int) -> bool:
    """Whether a program of this user listens at exactly this address: nothing else can answer there then."""
    packed = ipaddress.ip_address(address).packed
    # As proc(5) has it: words of 32 bits in the order of this machine, in hex.
    local = "".join(f"{word:08X}" for word in struct.unpack(f"={len(packed) // 4}I", packed)) + f":{port:04X}"
    user = str(os.getuid())
    try:
        with Path(f"/proc/self/net/{'tcp6' if ':' in address else 'tcp'}").open() as lines:
            # Listeners come first: of thousands of connections behind them nothing is read.
            return any(row[1] == local and row[3] == _LISTEN and row[7] == user for row in map(str.split, lines))
    except OSError:
        return False


def connect_to_own_only() -> None:
    """Refuse, from now on, each connection of this process to where no program of its user listens.

    For a program that shows the API key: once what should answer has ended, another user of the host may listen there.
    An audit hook, so that it holds for vLLM's own client too.
    """

    def refuse(event: str, values: tuple[object, ...]) -> None:
        if event == "socket.connect" and isinstance(at := values[1], tuple) and not is_own_listener(*at[:2]):
            raise ConnectionRefusedError(f"no program of this user listens at {at[0]}:{at[1]}")

    sys.addaudithook(refuse)
