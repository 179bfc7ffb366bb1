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
import zlib
from pathlib import Path

# How it ends where a blob is not for Docker.
REFUSED = 65
# How much of a layer is read at a time where what is between its headers is passed over.
LOOK = 64 << 10
BLOCK = 512
# How the forms of a header are called in it, and the modulus of its quick sum.
POSIX, GNU, ADLER = b"ustar\0", b"ustar  \0", 65521
OCTAL = re.compile(b"[0-7]*")
# How each way of packing begins that a Docker unpacks by itself: gzip, bzip2, xz, and zstd, also with what it skips.
PACKED = re.compile(rb"\x1f\x8b|BZh|\xfd7zXZ|\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")
# As Docker reads them, a link, a device and a folder have no content.
FOLDER, LINKS, WITHOUT_CONTENT = b"5", b"12", b"123456"
# What comes before an entry, and is of it or of all: as POSIX has it, and its name and target as GNU has them.
EXTENDED, LONG_NAME, LONG_LINK, OF_ALL = b"x", b"L", b"K", b"g"
# A size is as little as a file can be moved in by, and more than any disk of a host holds.
MAX_EXTENDED, MAX_SIZE = 1 << 20, 1 << 43
SPARSE = b"GNU.sparse"
# Each entry takes an inode, and a folder or a link 4 KB, of a header of 512 bytes. A disk has an inode for each 16 KB,
# and the largest images have 300,000 entries, of 50 KB each.
MAX_ENTRIES, BYTES_OF_ENTRY = 500_000, 16 << 10
# Docker makes each folder that a name leads through. A layer has an entry for each of its own; one without takes as
# much as a name may hold, 2,000.
MAX_UNNAMED = 10_000
# Of one entry: extended attributes. Python reads each in a microsecond.
MAX_RECORDS = 256
# Of a path on Linux.
MAX_NAME = 4096
# Of a config: EXPOSE of every port takes 131,070. As wire/reading counts them, which a host does not have.
MAX_VALUES, LISTED = 200_000, ("rootfs", "diff_ids")
# Each link to a file below it is a copy of that file, where Docker has a store that is not its usual one.
COPIED = b".wh..wh.plnk"


class Made:
    """How many files and folders Docker makes of an image, of whose layers each counts as often as it is listed."""

    def __init__(self) -> None:
        self._entries = self._bytes = self._unnamed = 0

    def add(self, times: int, size: int) -> None:
        """Count an entry of so many bytes, or raise ValueError where there are too many for the size of the image."""
        self._entries += times
        self._bytes += times * size
        if self._entries > MAX_ENTRIES + self._bytes // BYTES_OF_ENTRY:
            raise ValueError(f"the image has more than {MAX_ENTRIES} files, links and folders of next to nothing")

    def add_unnamed(self, times: int) -> None:
        """Count a folder that has no entry, or raise ValueError where there are too many."""
        self._unnamed += times
        if self._unnamed > MAX_UNNAMED:
            raise ValueError(f"the image has more than {MAX_UNNAMED} folders that have no entry of their own")


class LayerTar:
    """The tar of a layer, followed from header to header: each file has its own bytes in it, and no more.

    A file with holes is a header of 1 KB that becomes any size, and what is packed unpacks to any. What is not known
    to be harmless is refused: two programs may read it in two ways.
    """

    def __init__(self, made: Made, times: int = 1) -> None:
        # How many bytes come before the next header.
        self.skip = 0
        self._rest, self._begun, self._over = b"", False, False
        # The kind and the size of the extended header that comes next; the kinds, and what they give, before an entry.
        self._extended: tuple[bytes, int] | None = None
        self._before, self._given = b"", dict[bytes, bytes]()
        # By hash: as they are, so many names would be 100 MB.
        self._folders, self._links = set[int](), set[int]()
        self._made, self._times = made, times

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
        """Take note of the end, or raise ValueError where something is left that may be no tar."""
        if self._rest or self._before or self._extended is not None:
            raise ValueError("it is packed" if PACKED.match(self._rest) else "it is cut off")

    def _next(self, block: bytes) -> None:
        if self._extended is not None:
            (kind, size), self._extended = self._extended, None
            self._extend(kind, block[:size])
            return
        if not self._begun and PACKED.match(block):
            raise ValueError("it is packed")
        self._begun, self._over = True, not any(block)
        if self._over:
            return
        _check_form(block)
        kind, size = block[156:157], _number(block[124:136])
        if kind in (EXTENDED, LONG_NAME, LONG_LINK, OF_ALL) and size <= MAX_EXTENDED:
            self._announce(kind, size)
            # Docker makes the folders of its name, too.
            if kind == OF_ALL:
                self._lead_through(block, kind)
        elif kind in b"0\0" or kind in WITHOUT_CONTENT:
            self._enter(block, kind, size)
        else:
            raise ValueError(f"it has an entry of the kind {repr(kind)[1:]}: files, folders, links, devices are sent")

    def _announce(self, kind: bytes, size: int) -> None:
        """An extended header comes. Of two Docker takes the later one alone where others take both."""
        if self._before and (kind in self._before or {*b"xg"} & {*kind, *self._before}):
            raise ValueError("it has two extended headers of one entry")
        self._extended = kind, size
        self._before += kind if kind != OF_ALL else b""

    def _extend(self, kind: bytes, body: bytes) -> None:
        """Take what comes before an entry."""
        if kind == LONG_NAME:
            self._given = {b"path": body.partition(b"\0")[0]}
        elif kind == EXTENDED:
            self._given = _records(body)
        elif kind == OF_ALL and not {*_records(body)} <= {b"comment"}:
            raise ValueError("it has a header of all its entries that is more than a comment")

    def _enter(self, block: bytes, kind: bytes, size: int) -> None:
        size = int(self._given.get(b"size", size))
        if kind == b"\0" and size:
            raise ValueError("it has an entry of no kind, with content")
        self.skip = _padded(size) if kind == b"0" else 0
        self._made.add(self._times, BLOCK + self.skip)
        self._lead_through(block, kind)
        self._before, self._given = b"", {}

    def _lead_through(self, block: bytes, kind: bytes) -> None:
        long_name = self._given.get(b"path")
        for name in [long_name] if long_name else _names(block):
            if len(name) > MAX_NAME:
                raise ValueError("it has a name that is longer than a path may be")
            parts = [part for part in name.split(b"/") if part not in (b"", b".")]
            if b".." in parts or COPIED in name:
                raise ValueError("it has a name that Docker takes for another one")
            self._count(parts, kind)

    def _count(self, parts: list[bytes], kind: bytes) -> None:
        """Count the folders of a name, once each: so none of them may be a link, or become one."""
        is_folder, whole = kind in (FOLDER, b"\0"), hash(b"/".join(parts))
        if not is_folder and whole in self._folders:
            raise ValueError("it has another entry in place of a folder")
        if kind in LINKS:
            self._links.add(whole)
        for end in range(len(parts) - (not is_folder), 0, -1):
            path = hash(b"/".join(parts[:end]))
            if path in self._folders:
                return
            if path in self._links:
                raise ValueError("it has a name that leads through a link")
            self._folders.add(path)
            if end < len(parts):
                self._made.add_unnamed(self._times)


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
            ValueError: it lists other layers, or is larger than any.
        """
        if sum(map(self._text.count, (b",", b"[", b"{"))) > MAX_VALUES:
            raise ValueError(f"it has more than {MAX_VALUES} values")
        try:
            there = json.loads(self._text.decode(), object_pairs_hook=_object)["rootfs"]["diff_ids"]
        except (ValueError, LookupError, TypeError, RecursionError):
            there = None
        if there != self._listed:
            raise ValueError("it lists other layers")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Take an object, or raise ValueError where it lists layers twice: keys are of any case to Docker."""
    names = [key.casefold() for key, _ in pairs]
    if max(map(names.count, LISTED)) > 1:
        raise ValueError
    return dict(pairs)


def _padded(size: int) -> int:
    return size + -size % BLOCK


def _check_form(block: bytes) -> None:
    """Refuse a header that is neither of POSIX nor of GNU, nor as old as to have nothing of what they added."""
    form, end = block[257:265], block[508:]
    if not (form == GNU or (form.startswith(POSIX) and end != b"tar\0") or not any(block[257:])):
        raise ValueError("it has a header of a form that is not known")
    # Of the bytes, with spaces in the place of the sum itself. The low half of this one is their sum, by a modulus that
    # it exceeds once at most: ten times faster than `sum`, and Docker refuses what is wrong by just that.
    wanted = zlib.adler32(block[:148] + b" " * 8 + block[156:]) & 0xFFFF
    if (_number(block[148:156]) + 1) % ADLER != wanted:
        raise ValueError("it has a header whose sum is wrong")


def _number(field: bytes) -> int:
    if field[0] == 0x80:
        return _limited(int.from_bytes(field[1:], "big"))
    digits = field.strip(b" \0")
    return _limited(int(digits or b"0", 8) if OCTAL.fullmatch(digits) else -1)


def _limited(size: int) -> int:
    if not 0 <= size < MAX_SIZE:
        raise ValueError("it has an entry of no size")
    return size


def _names(block: bytes) -> list[bytes]:
    """What Docker takes for the name in a header: POSIX has its begin where GNU has times, unless they are none."""
    name, begin = block[:100].partition(b"\0")[0], block[345:500].partition(b"\0")[0]
    if not begin:
        return [name]
    return [begin + b"/" + name, *([name] if block[257:265] == GNU else ())]


def _records(body: bytes) -> dict[bytes, bytes]:
    """What an extended header has of the entry that follows."""
    found, at = dict[bytes, bytes](), 0
    while at < len(body):
        length, _, _ = body[at : at + 8].partition(b" ")
        if not re.fullmatch(b"[0-9]{1,7}", length) or not len(length) < int(length) <= len(body) - at:
            raise ValueError("it has an entry that cannot be read")
        key, _, value = body[at + len(length) + 1 : at + int(length)].partition(b"=")
        if value[-1:] != b"\n" or key in found or len(found) == MAX_RECORDS:
            raise ValueError("it has an entry that cannot be read")
        value = value[:-1]
        if key.startswith(SPARSE):
            raise ValueError("it has a file with holes, which becomes larger than what is sent of it")
        if key == b"size":
            _limited(int(value) if re.fullmatch(b"[0-9]{1,18}", value) else -1)
        found[key] = value
        at += int(length)
    return found


class Checks:
    """What the bytes of the blobs of an image are given to, before Docker gets them."""

    def __init__(self, config: str, layers: list[str]) -> None:
        self._config, self._layers, self._made = config, layers, Made()

    def of(self, blob: str) -> LayerTar | Config:
        """What this blob's are given to."""
        if blob == self._config:
            return Config(self._layers)
        return LayerTar(self._made, self._layers.count(blob))


def look_at(config: str, layers: list[str]) -> None:
    """Look at the blobs that are here.

    Raises:
        ValueError: one is not for Docker.
    """
    checks = Checks(config, layers)
    for blob in filter(lambda name: Path(name).exists(), dict.fromkeys((config, *layers))):
        one = checks.of(blob)
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
