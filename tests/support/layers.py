"""Headers of a layer's archive, also as no program writes them."""

from __future__ import annotations

import tarfile

POSIX, GNU = b"ustar\x0000", b"ustar  \0"
ENTRY = tarfile.TarInfo("a").tobuf()


def summed(header: bytes) -> bytes:
    """A header with the sum of its bytes."""
    blank = header[:148] + b" " * 8 + header[156:]
    return blank[:148] + b"%06o\0 " % sum(blank) + blank[156:]


def sized(header: bytes, size: bytes, kind: bytes = b"0") -> bytes:
    """A header with another size, or of another kind."""
    return summed(header[:124] + size.ljust(12, b"\0") + header[136:156] + kind + header[157:])


def entry(name: bytes, kind: bytes = b"0", *, form: bytes = POSIX, begin: bytes = b"", end: bytes = b"") -> bytes:
    """The header of one without content, in a form, with what may be the begin of its name, and its last bytes."""
    header = sized(ENTRY, b"0", kind)[100:257] + form + bytes(80) + begin
    return summed(name.ljust(100, b"\0") + header.ljust(412 - len(end), b"\0") + end)


def before(kind: bytes, body: bytes) -> bytes:
    """An extended header."""
    return sized(ENTRY, b"%o" % len(body), kind) + body.ljust(-(-len(body) // 512) * 512, b"\0")
