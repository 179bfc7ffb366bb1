"""One value of a JSON text of any length and depth, read in the same way by each Python."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Collection, Sequence

# What is shorter Python may read: what it makes of a text takes thirty times its length.
SHORT = PIECE = 1 << 20
# How deep Python itself can read is another number in each version, and in each place of a program.
MAX_DEPTH = 200
_SPACE = rb"[ \t\n\r]*"
_WORD = rb"(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)"
_START = re.compile(_SPACE + rb"([\[{\"]|(?:%s))" % _WORD)
_COLON, _CLOSED = re.compile(_SPACE + rb":"), re.compile(_SPACE + rb"([\]}])")
_NEXT = re.compile(_SPACE + rb"([,\]}])")
_END = re.compile(_SPACE + rb"\Z")
# Many plain values at once: a step in Python takes as long as a hundred of them here. Each costs memory until the match
# ends, so there are so many at most, and texts are short.
_SHORT_TEXT = rb'"%s(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})%s){0,50}"' % ((rb'[^"\\\x00-\x1f]{0,200}',) * 2)
_SIMPLE = rb"(?:%s|%s|\[\]|\{\})" % (_SHORT_TEXT, _WORD)
_RUNS = {
    b"[": re.compile(rb"(?:%s%s%s,){0,1000}" % (_SPACE, _SIMPLE, _SPACE)),
    b"{": re.compile(rb"(?:%s%s%s:%s%s%s,){0,1000}" % (_SPACE, _SHORT_TEXT, _SPACE, _SPACE, _SIMPLE, _SPACE)),
}
_PAIRS = {b"[": b"]", b"{": b"}"}
_CONTROL, _BAD_ESCAPE = re.compile(rb"[\x00-\x1f]"), re.compile(rb'\\(?!["/bfnrt]|u[0-9a-fA-F]{4})')
_NO_BRACKETS = bytes({*range(256)} - {*b"[]{}"})


def member(
    raw: bytes, name: str, constant: Callable[[str], object] | None, known: Collection[str] | None = None
) -> object:
    """Return the value of a key of an object; `constant` gets NaN and such, which a long text may not have.

    Raises:
        ValueError: it is not JSON, nested deeper than `MAX_DEPTH`, or has a key that is not `known`.
    """
    if len(raw) > SHORT:
        return plain_at(raw, (name,), known)
    found = None if is_deep(raw) else json.loads(raw.decode(), parse_constant=constant)
    if not isinstance(found, dict):
        raise ValueError("not an object, or nested too deeply")
    for key in found:
        _require_known(key, known)
    return found.get(name)


def is_deep(raw: bytes) -> bool:
    """Whether JSON is nested deeper than `MAX_DEPTH`; true also of some that is not JSON."""
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return False
    texts_end = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    left = re.sub(rb'"[^"]*"', b"", texts_end).translate(None, _NO_BRACKETS)
    for _ in range(MAX_DEPTH):
        left = left.replace(b"[]", b"").replace(b"{}", b"")
    return bool(left)


def _require_known(key: object, known: Collection[str] | None) -> None:
    if known is not None and key not in known:
        raise ValueError(f"has a key that is none of {', '.join(known)}")


def plain_at(raw: bytes, path: Sequence[str], known: Collection[str] | None = None) -> object:
    """The text, number or constant at this path of keys, the last one of several; None where there is none.

    Raises:
        ValueError: it is not JSON, or its outer object has a key that is not `known`.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(raw), PIECE):
        decoder.decode(raw[start : start + PIECE], final=start + PIECE >= len(raw))
    # Of each object or list that is open: its bracket, and whether the path leads into it.
    opened, at, found = [(b"", True)], 0, b"null"
    while True:
        inside, leads = opened[-1]
        if inside and not leads:
            at = _skip(_RUNS[inside], raw, at)
        if inside == b"{":
            key, at = _value(raw, at)
            name = _text(key)
            if len(opened) == 2:
                _require_known(name, known)
            leads = leads and name == path[len(opened) - 2]
            at = _match(_COLON, raw, at).end()
        value, at = _value(raw, at)
        is_last = len(opened) > len(path)
        if leads:
            found = value if is_last and value not in _PAIRS else b"null"
        if value in _PAIRS:
            closed = _CLOSED.match(raw, at)
            if closed is None:
                opened.append((value, leads and not is_last and value == b"{"))
                if len(opened) > MAX_DEPTH:
                    raise ValueError("nested too deeply")
                continue
            if closed[1] != _PAIRS[value]:
                raise ValueError("not JSON")
            at = closed.end()
        at = _close(raw, at, opened)
        if len(opened) == 1:
            _match(_END, raw, at)
            return json.loads(found)


def text_at(raw: bytes, path: Sequence[str]) -> str:
    """The text at this path of keys; empty where there is none, or no JSON."""
    try:
        if len(raw) <= SHORT:
            found = None if is_deep(raw) else json.loads(raw.decode())
            for key in path:
                found = found.get(key) if isinstance(found, dict) else None
        else:
            found = plain_at(raw, path)
    except ValueError:
        return ""
    return found if isinstance(found, str) else ""


def _skip(run: re.Pattern[bytes], raw: bytes, at: int) -> int:
    """Where the plain values that begin here end."""
    while (end := _match(run, raw, at).end()) > at:
        at = end
    return at


def _value(raw: bytes, at: int) -> tuple[bytes, int]:
    """The plain value or the bracket here, and where it ends."""
    found = _match(_START, raw, at)
    if found[1] != b'"':
        return found[1], found.end()
    begin = end = found.end() - 1
    escaped = True
    while escaped:
        end = before = raw.find(b'"', end + 1)
        if end < 0:
            raise ValueError("a text has no end")
        while raw[before - 1] == ord("\\"):
            before -= 1
        escaped = (end - before) % 2 == 1
    # As Python reads it, without the text that it makes: pictures are megabytes.
    wrong = _CONTROL.search(raw, begin, end)
    text = raw[begin : end + 1]
    if wrong or _BAD_ESCAPE.search(text.replace(b"\\\\", b"")):
        raise ValueError("not JSON: a text has a control character, or a backslash before a wrong one")
    return text, end + 1


def _text(raw: bytes) -> object:
    if not raw.startswith(b'"'):
        raise ValueError("a key must be a text")
    return json.loads(raw.decode())


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
