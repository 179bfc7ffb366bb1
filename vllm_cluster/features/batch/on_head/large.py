"""One value of a long JSON text: what Python makes of the whole of it may take thirty times its length."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence

# What is shorter Python may read: 30 MB at most.
SHORT = PIECE = 1 << 20
MAX_DEPTH = 500
_SPACE = rb"[ \t\n\r]*+"
_TEXT = rb'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"'
_PLAIN = rb"(?:%s|-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?|true|false|null)" % _TEXT
_KEY = re.compile(rb"%s(%s)%s:" % (_SPACE, _TEXT, _SPACE))
_VALUE = re.compile(rb"%s(?:([\[{])(%s[\]}])?|(%s))" % (_SPACE, _SPACE, _PLAIN))
_NEXT = re.compile(rb"%s([,\]}])" % _SPACE)
_END = re.compile(rb"%s\Z" % _SPACE)
# Many plain values at once: a step in Python takes as long as a hundred of them here.
_RUNS = {
    b"[": re.compile(rb"(?:%s%s%s,)*+" % (_SPACE, _PLAIN, _SPACE)),
    b"{": re.compile(rb"(?:%s%s%s:%s%s%s,)*+" % (_SPACE, _TEXT, _SPACE, _SPACE, _PLAIN, _SPACE)),
}
_PAIRS = {b"[": b"]", b"{": b"}"}


def plain_at(raw: bytes, path: Sequence[str]) -> object:
    """The text, number or constant at this path of keys, the last one of several; None where there is none.

    Raises:
        ValueError: it is not JSON.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(raw), PIECE):
        decoder.decode(raw[start : start + PIECE], final=start + PIECE >= len(raw))
    # Of each object or list that is open: its bracket, and whether the path leads into it.
    opened, at, found = [(b"", True)], 0, b"null"
    while True:
        inside, leads = opened[-1]
        if inside and not leads:
            at = _match(_RUNS[inside], raw, at).end()
        if inside == b"{":
            key = _match(_KEY, raw, at)
            at, leads = key.end(), leads and json.loads(key[1]) == path[len(opened) - 2]
        value = _match(_VALUE, raw, at)
        bracket, closed, plain = value.groups()
        at, is_last = value.end(), len(opened) > len(path)
        if leads:
            found = (is_last and plain) or b"null"
        if bracket and not closed:
            opened.append((bracket, leads and not is_last and bracket == b"{"))
            if len(opened) > MAX_DEPTH:
                raise ValueError("nested too deeply")
            continue
        if bracket and closed.strip() != _PAIRS[bracket]:
            raise ValueError("not JSON")
        at = _close(raw, at, opened)
        if len(opened) == 1:
            _match(_END, raw, at)
            return json.loads(found)


def _close(raw: bytes, at: int, opened: list[tuple[bytes, bool]]) -> int:
    """Take what ends behind a value, up to the next comma; where that is."""
    while len(opened) > 1:
        found = _match(_NEXT, raw, at)
        at = found.end()
        if found[1] == b",":
            break
        if found[1] != _PAIRS[opened.pop()[0]]:
            raise ValueError("not JSON")
    return at


def _match(form: re.Pattern[bytes], raw: bytes, at: int) -> re.Match[bytes]:
    if (found := form.match(raw, at)) is None:
        raise ValueError(f"not JSON at byte {at}")
    return found
