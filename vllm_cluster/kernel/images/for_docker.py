"""Finds what a source gives for another host's `docker load` that is not for Docker; standard library alone.

Docker unpacks a layer before it compares its digest: what could become more than its own bytes is to be refused before
Docker has it whole. The laptop looks at what goes through it, and a host at what other hosts gave, in its working
folder, where this runs by itself. Argument: {"config", "layers"}; layers that are not there are not looked at.
"""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

# How it ends where a blob is not for Docker.
REFUSED = 65
# How much of a layer is read at a time where what is between its headers is passed over.
LOOK = 64 << 10
BLOCK = 512
# How each way of packing begins that a Docker unpacks by itself: gzip, bzip2, xz, and zstd, also with what it skips.
PACKED = re.compile(rb"\x1f\x8b|BZh|\xfd7zXZ|\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")
# As Docker reads them, a link, a device and a folder have no content, and these give one name to what follows.
FOLDER, WITHOUT_CONTENT, LONG_NAME, LONG_LINK = b"5", b"123456", b"L", b"K"
MAX_EXTENDED = 1 << 20
SPARSE = b"GNU.sparse"
# Docker makes each folder that a name leads through, of 4 KB and an inode. A layer has an entry for each of its own, of
# 512 bytes; one without takes as much as a name may hold, 2,000. The largest images have 50,000.
MAX_UNNAMED, MAX_FOLDERS = 10_000, 300_000
# Of a path on Linux.
MAX_NAME = 4096


class LayerTar:
    """The tar of a layer, followed from header to header: each file has its own bytes in it, and no more.

    A file with holes is a header of 1 KB that becomes any size, and what is packed unpacks to any. What is not known
    to be harmless is refused: two programs may read it in two ways.
    """

    def __init__(self) -> None:
        # How many bytes come before the next header.
        self.skip = 0
        self._rest, self._begun, self._over = b"", False, False
        # The kind and the bytes of the extended header that comes next; the size in the one before.
        self._extended: tuple[bytes, int] | None = None
        self._size: int | None = None
        # By hash: as they are, so many names would be 100 MB.
        self._folders, self._unnamed = set[int](), 0

    def feed(self, piece: bytes) -> None:
        """Follow what comes next.

        Raises:
            ValueError: it is not for Docker.
        """
        data, at = self._rest + piece, 0
        while not self._over:
            needed = BLOCK if self._extended is None else _padded(self._extended[1])
            if len(data) - at < self.skip + needed:
                break
            at += self.skip
            self.skip = 0
            self._next(data[at : at + needed])
            at += needed
        passed = min(self.skip, len(data) - at)
        self.skip -= passed
        self._rest = b"" if self._over else data[at + passed :]

    def end(self) -> None:
        """Take note of the end.

        Raises:
            ValueError: something is left that may be no tar.
        """
        if self._rest:
            raise ValueError("it is packed" if PACKED.match(self._rest) else "it is cut off")

    def _next(self, block: bytes) -> None:
        if self._extended is not None:
            (kind, size), self._extended = self._extended, None
            self._extend(kind, block[:size])
            return
        if not self._begun and PACKED.match(block):
            raise ValueError("it is packed")
        self._begun, self._over = True, not any(block)
        kind, size = block[156:157], _number(block[124:136])
        if kind in (b"x", LONG_NAME) and size <= MAX_EXTENDED:
            self._extended = kind, size
        elif kind == LONG_LINK:
            self.skip = _padded(size)
        elif kind == b"0" or kind in WITHOUT_CONTENT or (kind == b"\0" and not size and not self._size):
            self.skip = _padded(size if self._size is None else self._size) if kind == b"0" else 0
            self._size = None
            self._lead_through(_name(block), named=kind == FOLDER)
        else:
            raise ValueError(f"it has an entry of the kind {kind!r}")

    def _extend(self, kind: bytes, body: bytes) -> None:
        """Take what comes before an entry: of two names each counts, since which one Docker takes is its own."""
        found = _records(body) if kind == b"x" else {b"path": body.rstrip(b"\0")}
        if b"size" in found:
            if not re.fullmatch(b"[0-9]{1,18}", found[b"size"]):
                raise ValueError("it has an entry of no size")
            self._size = int(found[b"size"])
        # Whether it is a folder comes with the header: as one of its own it is counted there, by its short name.
        self._lead_through(found.get(b"path", b""), named=True)

    def _lead_through(self, name: bytes, *, named: bool) -> None:
        """Count the folders of a name; those that no entry has named before are limited."""
        if len(name) > MAX_NAME:
            raise ValueError("it has a name that is longer than a path may be")
        parts = [part for part in name.split(b"/") if part not in (b"", b".")]
        for end in range(len(parts) - (not named), 0, -1):
            path = hash(b"/".join(parts[:end]))
            if path in self._folders:
                return
            self._folders.add(path)
            self._unnamed += end < len(parts)
            if self._unnamed > MAX_UNNAMED or len(self._folders) > MAX_FOLDERS:
                raise ValueError("it has more folders than its entries name")


class Config:
    """The configuration of an image, which lists the layers that are sent."""

    skip = 0

    def __init__(self, layers: list[str]) -> None:
        self._listed, self._text = [f"sha256:{layer}" for layer in layers], b""

    def feed(self, piece: bytes) -> None:
        """Take what comes next."""
        self._text += piece

    def end(self) -> None:
        """Read it.

        Raises:
            ValueError: it lists other layers.
        """
        try:
            there = json.loads(self._text)["rootfs"]["diff_ids"]
        except (ValueError, LookupError, TypeError, RecursionError):
            there = None
        if there != self._listed:
            raise ValueError("it lists other layers")


def _padded(size: int) -> int:
    return size + -size % BLOCK


def _number(field: bytes) -> int:
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    if not re.fullmatch(b"[0-7]*", digits):
        raise ValueError("it has an entry of no size")
    return int(digits or b"0", 8)


def _name(block: bytes) -> bytes:
    """The name in a header: POSIX has its begin in a field of its own, where GNU has times."""
    name, begin = (field.partition(b"\0")[0] for field in (block[:100], block[345:500]))
    return begin + b"/" + name if block[257:263] == b"ustar\0" else name


def _records(body: bytes) -> dict[bytes, bytes]:
    """What an extended header has of the entry that follows."""
    found, at = dict[bytes, bytes](), 0
    while at < len(body):
        length, _, _ = body[at : at + 8].partition(b" ")
        if not re.fullmatch(b"[0-9]{1,7}", length) or not len(length) < int(length) <= len(body) - at:
            raise ValueError("it has an entry that cannot be read")
        key, _, value = body[at + len(length) + 1 : at + int(length) - 1].partition(b"=")
        if key.startswith(SPARSE):
            raise ValueError("it has a file with holes, which becomes larger than what is sent of it")
        found[key] = value
        at += int(length)
    return found


def check_of(blob: str, config: str, layers: list[str]) -> LayerTar | Config:
    """What the bytes of a blob are given to, before Docker gets them."""
    return Config(layers) if blob == config else LayerTar()


def look_at(config: str, layers: list[str]) -> None:
    """Look at the blobs that are here.

    Raises:
        ValueError: one is not for Docker.
    """
    for blob in filter(lambda name: Path(name).exists(), dict.fromkeys((config, *layers))):
        one = check_of(blob, config, layers)
        try:
            with Path(blob).open("rb") as file:
                while piece := file.read(LOOK):
                    one.feed(piece)
                    file.seek(one.skip, io.SEEK_CUR)
                    one.skip = 0
            one.end()
        except ValueError as error:
            raise ValueError(f"{blob}: {error}") from None


def main() -> None:
    """Look at the blobs that are here."""
    try:
        look_at(**json.loads(sys.argv[1]))
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(REFUSED)


if __name__ == "__main__":
    main()
