"""The labels of what people paste: no text from elsewhere has one, however a line breaks and it is spelled."""

from __future__ import annotations

import re
import unicodedata

LABELS = ("fix", "next", "ask", "clients", "look", "follow", "continue", "stop", "same")
_MARK = "\u0300"
# A letter or sign that may look like any letter.
_ANY = "\uffff"
_LABEL = re.compile(
    rf"(?i)(?:{'|'.join(f'{_MARK}*'.join(f'[{char}{_ANY}]' for char in label) for label in LABELS)})(?=[\s{_MARK}]*:)"
)
# What divides words; a longer one is quoted from within.
_DIVIDES, _MAX_WORD = frozenset(" \t\n\"':"), 60
_COLONS = ":\u02d0\u02f8\u0589\u05c3\u0831\u0964\u2236\ua789\ufe13\ufe30\ufe55\uff1a\ua4fd\u205a"
_NO_LETTERS = ("Mn", "Me", "Mc", "Cf")
_LIGATURES = {code: unicodedata.normalize("NFKD", chr(code)) for code in range(0xFB00, 0xFB07)}


class _Skeleton(dict[int, str]):
    """What a character looks like: a letter of ASCII, a colon, a blank, a mark on a letter, or any letter."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        base = unicodedata.normalize("NFKD", char)[0]
        if unicodedata.category(char) in _NO_LETTERS:
            base = _MARK
        elif char in _COLONS:
            base = ":"
        self[code] = base if base.isascii() or base == _MARK else _ANY
        return self[code]


# A blank of Braille; a long s, which looks like an f.
_SKELETON = _Skeleton({0x2800: " ", 0x17F: _ANY})


def unlabelled(text: str) -> str:
    """Put each word in quotes that ends in a label, or looks as if it did, before a colon."""
    if text.isascii():
        # Logs have many lines: to look for words is quicker than for an expression.
        lowered = text.lower()
        if not any(map(lowered.__contains__, LABELS)):
            return text
    else:
        text = text.translate(_LIGATURES)
    seen = text if text.isascii() else text.translate(_SKELETON)
    parts, done = list[str](), 0
    for label in _LABEL.finditer(seen):
        if not any(map(str.isascii, label[0])):
            continue  # a word of another script
        begin = label.start()
        while begin > max(done, label.start() - _MAX_WORD) and seen[begin - 1] not in _DIVIDES:
            begin -= 1
        parts += text[done:begin], '"', text[begin : label.end()], '"'
        done = label.end()
    return "".join((*parts, text[done:])) if done else text
