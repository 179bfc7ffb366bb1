"""The labels of what people paste: no text from elsewhere has one, however a line breaks and it is spelled."""

from __future__ import annotations

import re
import unicodedata

LABELS = ("fix", "next", "ask", "clients", "look", "follow", "continue", "stop", "same")
_MARK = "\u0300"
_LABEL = re.compile(rf"(?i)(?:{'|'.join(''.join(f'{c}{_MARK}*' for c in label) for label in LABELS)})(?=\s{{0,40}}:)")
# What divides words; a longer one is quoted from within.
_DIVIDES, _MAX_WORD = frozenset(" \t\n\"':"), 60
_COLONS = ":\u02d0\u02f8\u0589\u05c3\u0831\u0964\u2236\ua789\ufe13\ufe30\ufe55\uff1a"
# Letters that look like those of the labels, and what they look like: Cyrillic, Greek, Armenian, and others of Latin.
_LIKE = dict(
    zip(
        "\u0430\u0441\u0435\u0456\u043a\u04cf\u043e\u0440\u0455\u0442\u0445\u0493\u0461\u057d\u0578\u03b1\u03b5\u03b9\u03ba\u03bf\u03c1"
        "\u03c4\u03c5\u03c7\u03bd\u03c9\u0192\u0131\u0142\u00f8\u0261\u029f\u026a\ua730\u0274\u1d07\u1d1b\u1d00\ua731\u1d0b\u1d04\u1d0f\u1d1c",
        "aceiklopstxfwunaeikoptuxnwfiloglifnetaskcou",
        strict=True,
    )
)
_LIGATURES = {code: unicodedata.normalize("NFKD", chr(code)) for code in range(0xFB00, 0xFB07)}


class _Skeleton(dict[int, str]):
    """What a character looks like: a letter of ASCII, a colon, a mark on the letter before it, or itself."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        base = unicodedata.normalize("NFKD", char)[0].lower()
        like = ":" if char in _COLONS else _MARK if unicodedata.combining(char) else _LIKE.get(base, base)
        self[code] = like if like.isascii() or like == _MARK else char
        return self[code]


_SKELETON = _Skeleton()


def unlabelled(text: str) -> str:
    """Put each word in quotes that ends in a label, or looks as if it did, before a colon."""
    text = text if text.isascii() else text.translate(_LIGATURES)
    seen = text if text.isascii() else text.translate(_SKELETON)
    parts, done = list[str](), 0
    for label in _LABEL.finditer(seen):
        begin = label.start()
        while begin > max(done, label.start() - _MAX_WORD) and seen[begin - 1] not in _DIVIDES:
            begin -= 1
        parts += text[done:begin], '"', text[begin : label.end()], '"'
        done = label.end()
    return "".join((*parts, text[done:])) if done else text
