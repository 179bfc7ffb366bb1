"""What a container printed, as the Engine API frames it."""

from __future__ import annotations

import struct


def read_framed(data: bytes) -> str:
    """The text of Docker's framed output: 8 bytes of header (stream, 3 zeros, big-endian length), then the content."""
    parts: list[bytes] = []
    at = 0
    while at + 8 <= len(data):
        (length,) = struct.unpack(">I", data[at + 4 : at + 8])
        parts.append(data[at + 8 : at + 8 + length])
        at += 8 + length
    return b"".join(parts).decode("utf-8", "replace")
