"""Which needles a piece of a log can hold, by its distinct words: most pieces hold hardly any."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
_SEPARATE = bytes(byte if byte in _LETTERS or byte == 10 else 32 for byte in range(256))
_ESCAPED = re.compile(rb"\\[ntr]")


@dataclass(frozen=True)
class Needle:
    """A text to look for, taken apart: words that are there as they are, and ends of words, each with a space."""

    text: bytes
    whole: tuple[bytes, ...]
    ends: tuple[bytes, ...]


def needle(text: bytes) -> Needle:
    """Take a text apart."""
    words = text.translate(_SEPARATE).split()
    whole: list[bytes] = []
    ends: list[bytes] = []
    for at, word in enumerate(words):
        before = b"" if at == 0 and text[0] in _LETTERS else b" "
        after = b"" if at == len(words) - 1 and text[-1] in _LETTERS else b" "
        (whole if before and after else ends).append(word if before and after else before + word + after)
    return Needle(text, tuple(whole), tuple(ends))


class DistinctWords:
    """The distinct words of a piece of a log, without digits."""

    def __init__(self, part: bytes) -> None:
        # JSON writes a line break as \n, which begins no word, and a quotation mark with a backslash.
        self._json = b"\\" in part
        if self._json:
            part = _ESCAPED.sub(b"  ", part)
        # Lines that differ in numbers only are one.
        lines = dict.fromkeys(part.translate(_SEPARATE).split(b"\n"))
        self._words = set(b" ".join(lines).split())
        self._text = b" ".join((b"", *self._words, b""))
        # Needles with a capital are many, and words with one are few.
        self._odd = b" ".join((b"", *(word for word in self._words if not word.islower()), b""))
        self._known: dict[bytes, bool] = {}

    def __contains__(self, word: bytes) -> bool:
        return word in self._words

    def keys(self, needles: Iterable[Needle]) -> Iterator[tuple[Needle, bytes]]:
        """The needles that the piece may hold, and what to find there for each."""
        for one in needles:
            if self._words.issuperset(one.whole) and all(map(self._has, one.ends)):
                yield one, one.text
                if self._json and b'"' in one.text:
                    yield one, one.text.replace(b'"', b'\\"')

    def _has(self, end: bytes) -> bool:
        if (known := self._known.get(end)) is None:
            text = self._text if end.islower() else self._odd
            known = self._known[end] = end.strip() in self._words or end in text
        return known
