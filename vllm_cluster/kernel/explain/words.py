"""Which needles a piece of a log can hold, by its distinct words: most pieces hold hardly any."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

# What differs in digits only is looked at once.
ZEROED = bytes(48 if 48 <= byte <= 57 else byte for byte in range(256))
_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
FEW = 4
_SEPARATE = bytes(byte if byte in _LETTERS or byte == 10 else 32 for byte in range(256))
# What can be right before a word and is none: a line break of JSON, and a colour that was pasted.
_ESCAPED = re.compile(rb"\\[ntr]|\[\d{1,2}(?:;\d{1,3}){0,4}m")


@dataclass(frozen=True)
class Needle:
    """A text to look for, taken apart: words that are there as they are, and ends of words, each with a space."""

    text: bytes
    whole: tuple[bytes, ...]
    ends: tuple[bytes, ...]

    @property
    def anchor(self) -> bytes:
        """The longest of its words: what has the text has this one."""
        return max(self.whole or self.ends, key=len)


def needle(text: bytes, *, inside: bool = False) -> Needle:
    """Take a text apart; it has a letter. `inside`: it counts only between other words."""
    words = text.translate(_SEPARATE).split()
    whole: list[bytes] = []
    ends: list[bytes] = []
    for at, word in enumerate(words):
        before = b"" if at == 0 and text[0] in _LETTERS and not inside else b" "
        after = b"" if at == len(words) - 1 and text[-1] in _LETTERS and not inside else b" "
        (whole if before and after else ends).append(word if before and after else before + word + after)
    return Needle(text, tuple(whole), tuple(ends))


class DistinctWords:
    """The distinct words of a piece of a log, without digits."""

    def __init__(self, part: bytes) -> None:
        if b"\\" in part or b"0m" in part:
            part = _ESCAPED.sub(b"  ", part)
        self._lines = part.translate(_SEPARATE).split(b"\n")
        # Lines that differ in numbers only are one.
        self._shapes = dict.fromkeys(self._lines)
        self._words = set(b" ".join(self._shapes).split())
        self._text = b" ".join((b"", *self._words, b""))
        # Needles with a capital are many, and words with one are few.
        self._odd = b" ".join((b"", *(word for word in self._words if word != word.lower()), b""))
        self._known: dict[bytes, bool] = {}

    def __contains__(self, word: bytes) -> bool:
        return word in self._words

    def possible(self, needles: Iterable[Needle]) -> dict[int, Needle]:
        """The needles that the piece may hold, by their numbers."""
        has, own = self._has, self._words
        return {at: one for at, one in enumerate(needles) if own.issuperset(one.whole) and all(map(has, one.ends))}

    def anchors(self, needles: Mapping[int, Needle]) -> dict[bytes, list[tuple[bytes, int]]]:
        """The words of the piece by which needles are found, each with their texts and numbers."""
        found: dict[bytes, list[tuple[bytes, int]]] = {}
        for number, one in needles.items():
            for word in (one.anchor,) if one.whole else self._with(one.anchor):
                found.setdefault(word, []).append((one.text, number))
        return found

    def lines_with(self, words: Iterable[bytes]) -> Iterator[tuple[int, frozenset[bytes]]]:
        """The lines that have any of these words, and which."""
        known = frozenset(words)
        # A few words are found in a line faster than it is split.
        few = known if len(known) <= FEW else (b"",)
        found = {
            shape: own
            for shape in self._shapes
            if any(map(shape.__contains__, few)) and (own := known.intersection(shape.split()))
        }
        return ((at, own) for at, own in enumerate(map(found.get, self._lines)) if own)

    def _with(self, end: bytes) -> Iterator[bytes]:
        """The words that have this in them, or begin or end so."""
        text = self._text if end == end.lower() else self._odd
        at = text.find(end)
        while at >= 0:
            after = text.find(b" ", at + len(end) - 1)
            yield text[text.rfind(b" ", 0, at + 1) + 1 : after]
            at = text.find(end, after)

    def _has(self, end: bytes) -> bool:
        if (known := self._known.get(end)) is None:
            text = self._text if end == end.lower() else self._odd
            known = self._known[end] = end.strip() in self._words or end in text
        return known
