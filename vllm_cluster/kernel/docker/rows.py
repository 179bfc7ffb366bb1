"""A JSON list from Docker, read row by row: of 3 MB no more than a row is held beside what is made of them."""

from __future__ import annotations

import json
import re
from codecs import utf_8_decode
from collections.abc import Callable

from vllm_cluster.kernel.held import one_at_a_time

# A container of Kubernetes has 4 kB, an image that is described in its labels 50.
MAX_ROW = 128 << 10
_MARK = re.compile(r"\s*([\[,\]])\s*")
_DECODER = json.JSONDecoder()


class RowReader:
    """Gives each row of a list to `take`, which makes a bounded value of it; one reader of all at a time does."""

    def __init__(self, take: Callable[[object], None]) -> None:
        self._take = take
        self._rest = bytearray()
        self._wanted = 0
        self._begun = self._ended = False

    def feed(self, piece: bytes) -> None:
        """Take the next bytes; none at the end.

        Raises:
            ValueError: they are not a list of objects, or a row is too long.
        """
        self._rest += piece
        # Of a long row half would be read again and again.
        if piece and len(self._rest) < self._wanted:
            return
        with one_at_a_time():
            text, _ = utf_8_decode(self._rest, "strict", not piece)
            at = self._read(text)
            del self._rest[: len(text[:at].encode())]
        if len(self._rest) > MAX_ROW:
            raise ValueError(f"a row is longer than {MAX_ROW >> 10} KiB")
        self._wanted = min(2 * len(self._rest), MAX_ROW)
        # Docker writes null for an empty list.
        if not piece and self._rest.strip() not in ((b"",) if self._ended else () if self._begun else (b"", b"null")):
            raise ValueError("is not a JSON list")

    def _read(self, text: str) -> int:
        """Take the rows that are whole; returns where the rest begins."""
        at = 0
        while found := _MARK.match(text, at):
            mark, begins = found[1], found.end()
            if self._ended or (mark == "[") == self._begun:
                raise ValueError("is not a JSON list")
            if mark == "]" or (mark == "[" and text.startswith("]", begins)):
                self._begun, self._ended, at = True, mark == "]", begins
                continue
            if begins == len(text):
                break
            if text[begins] != "{":
                raise ValueError("a row is not an object")
            try:
                row, at = _DECODER.raw_decode(text, begins)
            except RecursionError:
                raise ValueError("a row is nested too deeply") from None
            except ValueError:
                break
            self._begun = True
            self._take(row)
        return at
