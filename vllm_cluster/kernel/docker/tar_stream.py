"""A tar archive of files of this machine, made while it is sent: of any size it takes the memory of a piece."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm_cluster.wire.inside import open_plain

PIECE = 1 << 20


@dataclass(frozen=True)
class _Entry:
    name: str
    path: Path
    length: int

    @property
    def head(self) -> bytes:
        member = tarfile.TarInfo(self.name)
        member.size = self.length
        return member.tobuf()

    @property
    def padding(self) -> int:
        return -self.length % tarfile.BLOCKSIZE

    def content(self) -> Iterator[bytes]:
        left = self.length
        with open_plain(self.path) as file:
            while left:
                piece = file.read(min(PIECE, left))
                if not piece:
                    raise OSError(f"{self.path} has become shorter")
                left -= len(piece)
                yield piece


@dataclass(frozen=True)
class TarStream:
    """The archive, in pieces; each file has the size that it had when this was made."""

    _entries: tuple[_Entry, ...]

    @classmethod
    def of(cls, files: Mapping[str, Path]) -> TarStream:
        """Make the archive of these files, by their names in it.

        Raises:
            OSError: one cannot be read, or is not a plain file.
        """
        entries = []
        for name, path in files.items():
            with open_plain(path) as file:
                entries.append(_Entry(name, path, os.fstat(file.fileno()).st_size))
        return cls(tuple(entries))

    @property
    def size(self) -> int:
        """Its bytes."""
        return sum(len(one.head) + one.length + one.padding for one in self._entries) + 2 * tarfile.BLOCKSIZE

    def __iter__(self) -> Iterator[bytes]:
        """Read it.

        Raises:
            OSError: a file has become shorter, or cannot be read any more.
        """
        for one in self._entries:
            yield one.head
            yield from one.content()
            yield bytes(one.padding)
        yield bytes(2 * tarfile.BLOCKSIZE)
