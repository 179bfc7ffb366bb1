"""The entries of a JSON array in a file, one after another: what is in memory is one of them, and not the array."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TextIO

# Of an entry; and what is read at once.
MAX_ENTRY, PART = 16 << 20, 1 << 16
_SPACE = " \t\r\n"
_ENDS = (*_SPACE, ",", "]")


class ArrayReader:
    """An array as it is read; `line` and `column` are where the reader is, for people."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._text, self._at = file, "", 0
        self.line, self.column = 1, 1
        self._decoder = json.JSONDecoder()

    def entries(self) -> Iterator[object]:
        """Read each entry.

        Raises:
            ValueError, RecursionError: it is not an array of JSON, or an entry is too long.
        """
        if self._next() != "[":
            raise ValueError("Expecting an array")
        self._step(1)
        more = self._next() != "]"
        while more:
            yield self._entry()
            found = self._next()
            if found not in (",", "]"):
                raise ValueError("Expecting ',' delimiter")
            more = found == ","
            self._step(more)
        self._step(1)
        if self._next():
            raise ValueError("Extra data")

    def _next(self) -> str:
        """Skip spaces and return the character behind them, which stays; empty at the end."""
        while True:
            while self._at < len(self._text):
                if (found := self._text[self._at]) not in _SPACE:
                    return found
                self._step(1)
            if not self._more():
                return ""

    def _entry(self) -> object:
        self._next()
        while True:
            try:
                found, end = self._decoder.raw_decode(self._text, self._at)
                size = end - self._at
                # A number may have more digits behind what was read, as 0. has.
                if self._text[end : end + 1] in _ENDS or not self._more():
                    self._step(size)
                    return found
            except json.JSONDecodeError as error:
                size = error.pos - self._at
                if not self._more():
                    self._step(size)
                    raise ValueError(error.msg) from None
            if len(self._text) - self._at > MAX_ENTRY:
                raise ValueError(f"an entry has more than {MAX_ENTRY} characters")

    def _step(self, size: int) -> None:
        passed = self._text[self._at : self._at + size]
        self._at += size
        if lines := passed.count("\n"):
            self.line, self.column = self.line + lines, len(passed) - passed.rfind("\n")
        else:
            self.column += len(passed)

    def _more(self) -> bool:
        """Read on, as much again as is there: an entry is then tried a few times, and not for each part of it."""
        rest = self._text[self._at :]
        found = self._file.read(max(PART, len(rest)))
        self._text, self._at = rest + found, 0
        return bool(found)
