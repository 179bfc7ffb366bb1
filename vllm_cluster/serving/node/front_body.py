"""What the front looks for in a request's body: the model, and the beginning of its prompt. Pure.

JSON is scanned and not parsed: a list of a million numbers or an image in base64 would cost seconds and gigabytes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

# No other thread runs during one call of an expression: each reads so much of a body at most.
PIECE = 256 << 10
_BEGIN = re.compile(rb"\s{0,4096}\{")
# What shapes JSON: texts and brackets; of a text that is long or has an escape its first quote alone.
_TOKEN = re.compile(rb'"[^"\\]{0,4096}"|["\[\]{}]')
# Texts that follow one another within a value, where only brackets and the role of a message matter: one by one 89,000
# took 70 ms, and 400 such bodies kept all other clients waiting for 29 s.
# Nothing of it is read twice where a text has more escapes, where this Python can: four bodies of 60 MB took 20 s.
_ONCE = "+" if sys.version_info >= (3, 11) else ""
_TEXTS = re.compile(
    rf'(?:[^"\[\]{{}}]{{0,4096}}{_ONCE}"(?!user")'
    rf'[^"\\]{{0,4096}}{_ONCE}(?:\\.[^"\\]{{0,4096}}{_ONCE}){{0,64}}{_ONCE}"){{1,4096}}'.encode(),
    re.DOTALL,
)
# The rest of it, in parts: an expression over all of 8 MB of escapes took 500 MB.
_INSIDE = re.compile(rb'(?:[^"\\]{1,4096}|\\.){0,4096}', re.DOTALL)
_COLON = re.compile(rb"\s{0,4096}:\s{0,4096}")
# Of a form each line once: an expression over several lines reads the rest of the body at each of them.
_HEADER = re.compile(rb"^content-disposition:[^\r\n]{0,4096}", re.IGNORECASE | re.MULTILINE)
_HEADER_BYTES = 4096 + len("content-disposition:")
_OF_MODEL = re.compile(rb";\s*name=(?:\"model\"|model)\s*\Z", re.IGNORECASE)
MAX_HEADERS = 16 << 10
# So many brackets take 20 ms, and so do keys, each of which counts as several. What follows them is not looked at.
MAX_TOKENS, KEY_TOKENS, MAX_DEPTH = 25_000, 8, 1000
# Of a prompt; in a conversation the beginning ends with the first message of the user, as that stays when it grows.
PREFIX_BYTES, MESSAGES_BYTES = 1024, 64 << 10
MAX_MODEL = 4096
PROMPTS = ("messages", "prompt", "input")
_QUOTE = ord('"')


@dataclass(frozen=True)
class Found:
    """What a body names; None and empty where it does not."""

    model: str | None = None
    prefix: bytes = b""


def read_body(body: bytes, content_type: bytes) -> Found:
    """Find the model and the prompt's beginning; nothing in what is neither JSON nor a form."""
    kind = content_type.partition(b";")[0].strip().lower()
    if kind == b"multipart/form-data":
        return _in_form(body)
    return _in_json(body) if _BEGIN.match(body) else Found()


def _in_form(body: bytes) -> Found:
    line = next((one for one in _headers(body) if _OF_MODEL.search(one.group())), None)
    begin = body.find(b"\r\n\r\n", line.end(), line.end() + MAX_HEADERS) if line else -1
    if begin < 0:
        return Found()
    value = body[begin + 4 : begin + 4 + MAX_MODEL].partition(b"\r\n")[0]
    return Found(value.decode("utf-8", "replace"))


def _headers(body: bytes) -> Iterator[re.Match[bytes]]:
    for begin in range(0, len(body), PIECE):
        end = begin + PIECE + _HEADER_BYTES
        # One that the end of a piece cuts is whole in the next, and so is one that begins there.
        yield from (one for one in _HEADER.finditer(body, begin, end) if one.start() < begin + PIECE)


def _in_json(body: bytes) -> Found:
    """Take the values at the top; of a key that is there twice the last, as servers do."""
    scan = _BodyScan(body)
    try:
        scan.run()
    except _Odd:
        # No JSON: the server that gets it has the better words.
        return Found()
    return Found(scan.model, scan.prefix)


class _Odd(ValueError):
    """It is not JSON, or has too much in it."""


class _BodyScan:
    """One pass over the tokens of an object."""

    def __init__(self, body: bytes) -> None:
        self.model: str | None = None
        self.prefix = b""
        self._body, self._depth, self._key = body, 0, ""
        # Where the prompt begins, until its beginning is known; whether a message of the user has begun.
        self._from, self._user = -1, False

    def run(self) -> None:
        end, left = 0, MAX_TOKENS
        while left > 0 and self._depth <= MAX_DEPTH:
            left -= KEY_TOKENS if self._depth == 1 else 1
            if self._depth > 1 and (texts := _TEXTS.match(self._body, end, end + PIECE)):
                end = texts.end()
            match = _TOKEN.search(self._body, end, end + PIECE)
            if match is None and end + PIECE >= len(self._body):
                raise _Odd
            if match is None:
                end += PIECE
                continue
            start, end = match.span()
            mark = self._body[start]
            if mark == _QUOTE:
                end = end if end > start + 1 else self._end(start)
                if self._depth == 1:
                    end = self._take_text(start, end)
                elif self._depth == 3 and self._body[start:end] == b'"user"' and not _COLON.match(self._body, end):
                    self._user = True
            elif mark in b"{[":
                self._depth += 1
            else:
                self._close(start, end)
                if self._depth == 0:
                    return

    def _end(self, start: int) -> int:
        """Where a text ends that is long or has an escape."""
        end, before = start + 1, start
        while end > before and (found := _INSIDE.match(self._body, end, end + PIECE)):
            before, end = end, found.end()
        if self._body[end : end + 1] != b'"':
            raise _Odd
        return end + 1

    def _take_text(self, start: int, end: int) -> int:
        """Take a key or a value at the top; return where what follows begins."""
        # A model's name and a key are short, and a prompt may be all of the body.
        text = self._body[start:end] if end - start <= MAX_MODEL else b'""'
        if colon := _COLON.match(self._body, end):
            self._keep(start, PREFIX_BYTES)
            self._key, self._user = _text(text), False
            self._from = colon.end() if self._key in PROMPTS else -1
            return colon.end()
        if self._key == "model":
            self.model = _text(text)
        return end

    def _close(self, start: int, end: int) -> None:
        self._depth -= 1
        if self._depth == 2 and self._user and self._key == "messages":
            self._keep(end, MESSAGES_BYTES)
        elif self._depth == 0:
            self._keep(start, PREFIX_BYTES)

    def _keep(self, end: int, most: int) -> None:
        if self._from >= 0:
            self.prefix = self._body[self._from : min(end, self._from + most)].strip(b" \t\r\n,")
            self._from = -1


def _text(token: bytes) -> str:
    try:
        return str(json.loads(token))
    except ValueError:
        raise _Odd from None
