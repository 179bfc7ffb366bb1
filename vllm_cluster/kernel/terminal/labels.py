"""The labels of what people paste: no text from elsewhere has one, however a line breaks and it is spelled."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from vllm_cluster.wire.labels import LABELS

# What takes no place of its own; a letter of no alphabet that is known here, which may look like one or two of any.
_MARK, _ANY = "\u0300", "\uffff"
# What divides words; a longer one is quoted from within.
_DIVIDES, _MAX_WORD = frozenset(" \t\n\"':"), 60
# All that confusables.txt of Unicode 16 (UTS 39) has for a colon, and signs of other scripts that end a sentence so.
_COLONS = (
    ":\u02d0\u02f8\u0589\u05c3\u0703\u0704\u0831\u0903\u0964\u0a83\u1361\u1365\u16ec\u1803\u1804\u1809\u205a\u2236"
    "\ua4fd\ua789\ufe13\ufe30\ufe55\uff1a"
)
# Alike in many fonts of terminals.
_ALIKE = str.maketrans("i1|!0", "llllo")


class _Expanded(dict[int, str]):
    """A character that is written with several letters, as those; any other as it is."""

    def __missing__(self, code: int) -> str:
        letters = unicodedata.normalize("NFKD", chr(code))
        self[code] = letters if len(letters) > 1 and letters.isascii() and letters.isalpha() else chr(code)
        return self[code]


class _Skeleton(dict[int, str]):
    """What a character looks like: a small letter of ASCII, a colon, a blank, what takes no place, or any letter."""

    def __missing__(self, code: int) -> str:
        # Help is shown without it.
        from rich.cells import get_character_cell_size

        char = chr(code)
        base = unicodedata.normalize("NFKD", char)[0]
        if char in _COLONS:
            self[code] = ":"
        elif unicodedata.category(char) == "Zs" or get_character_cell_size(char) == 0:
            self[code] = _MARK
        else:
            self[code] = base.lower().translate(_ALIKE) if base.isascii() else _ANY
        return self[code]


_EXPANDED = _Expanded()
_SKELETON = _Skeleton({code: chr(code).lower().translate(_ALIKE) for code in range(128)})
# A blank of Braille; a long s, which looks like an f.
_SKELETON |= {0x2800: " ", 0x17F: _ANY}


def _spelled(label: str) -> str:
    """The expression for a label in skeletons: each letter, or a sign for any one or two."""
    if not label:
        return ""
    return f"(?:[{label[0]}{_ANY}]{_spelled(label[1:])}|{_ANY}{_spelled(label[2:])})"


_BARE = [label.translate(_ALIKE) for label in LABELS]
_LABEL = re.compile(rf"(?:{'|'.join(map(_spelled, _BARE))})\Z")
_LETTERS = max(map(len, LABELS))


def unlabelled(text: str) -> str:
    """Put each word in quotes that ends in a label, or looks as if it did, before a colon."""
    # Of most texts one character is one there.
    seen = text.translate(_SKELETON) if text.isascii() else text.translate(_EXPANDED).translate(_SKELETON)
    # Logs have many lines: to look for words is quicker than for an expression.
    if text.isascii() and not any(map(seen.__contains__, _BARE)):
        return text
    where: Sequence[int] = range(len(text))
    if len(seen) > len(text):
        where = [at for at, char in enumerate(text) for _ in _EXPANDED[ord(char)]]
    places = [at for at, char in enumerate(seen) if char != _MARK] if _MARK in seen else range(len(seen))
    bare = seen.replace(_MARK, "")
    parts, done, colon = list[str](), 0, -1
    while (at := bare.find(":", last := colon + 1)) >= 0:
        colon = end = at
        while end > last and bare[end - 1].isspace():
            end -= 1
        label = _LABEL.search(bare, max(last, end - _LETTERS), end)
        # A word of another script's letters alone is left.
        if label and any(map(str.isascii, label[0])):
            place = begin = places[label.start()]
            while begin > max(0, place - _MAX_WORD) and seen[begin - 1] not in _DIVIDES:
                begin -= 1
            first, behind = max(done, where[begin]), where[places[end]]
            parts += text[done:first], '"', text[first:behind], '"'
            done = behind
    return "".join((*parts, text[done:])) if done else text
