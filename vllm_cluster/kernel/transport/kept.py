"""What a command prints, gathered as it comes: of what its login shell prints before, the beginning alone."""

from __future__ import annotations

from vllm_cluster.kernel.transport.base import MAX_GREETING, MAX_OUTPUT

# Of what comes before the command, for the words of an error: all of it took 90 MB more where each of 64 hosts printed
# 1 MB on both outputs.
MAX_BEFORE = 64 << 10


class Kept:
    """One output of a command: the beginning of what came before its mark, the mark, and so many bytes behind it.

    Without a mark, so many bytes.
    """

    def __init__(self, mark: bytes = b"", most: int = MAX_OUTPUT) -> None:
        self.begun = not mark
        self._mark, self._most = mark, most
        self._before, self._own = bytearray(), bytearray()
        self._size, self._last = 0, b""

    def add(self, data: bytes) -> int:
        """Take what came; return how many bytes of it are not kept."""
        if not self.begun:
            return self._seek(data)
        part = data[: self._most - len(self._own)]
        self._own += part
        if self._mark:
            self._last = (self._last + data)[-len(self._mark) :]
        return len(data) - len(part)

    @property
    def hopeless(self) -> bool:
        """Whether too much came before the mark."""
        return not self.begun and self._size > MAX_GREETING

    @property
    def own(self) -> bytes:
        """What came behind the mark."""
        return bytes(self._own)

    def whole(self) -> bytes:
        """All that is kept; a second mark at the very end, which is of the command, is part of it in any case."""
        cut = self._last == self._mark and not self._own.endswith(self._mark)
        return b"".join((self._before, self._mark if self.begun else b"", self._own, self._mark if cut else b""))

    def _seek(self, data: bytes) -> int:
        window = self._last + data
        if (at := window.find(self._mark)) >= 0:
            self.begun, self._last = True, b""
            return self.add(window[at + len(self._mark) :])
        first = data[: MAX_BEFORE - len(self._before)]
        self._before += first
        self._size += len(data)
        # A mark may come in two pieces.
        self._last = window[1 - len(self._mark) :]
        return len(data) - len(first)
