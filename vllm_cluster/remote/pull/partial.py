"""A file while it arrives: what comes is appended, and it never gets longer than it should be."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from vllm_cluster.remote.pull.plan import PullError


class TooLongError(PullError):
    """More comes than the list has."""


class Partial(io.FileIO):
    """The open file; to be read too. No link is followed."""

    def __init__(self, path: Path, size: int) -> None:
        """Open it, or make it; one that is too long is emptied."""
        super().__init__(path, "ab+", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o644))
        self._size, self._name = size, path.name
        if self.length > size:
            self.truncate(0)

    @property
    def length(self) -> int:
        """How many bytes are there."""
        return os.fstat(self.fileno()).st_size

    def write(self, data: Any) -> int:
        """Append all of it.

        Raises:
            TooLongError: the file would be longer than it should be; nothing is written.
        """
        left = memoryview(data).cast("B")
        count = len(left)
        if self.length + count > self._size:
            raise TooLongError(f"more than {self._size} bytes come")
        while left:
            left = left[super().write(left) :]
        return count
