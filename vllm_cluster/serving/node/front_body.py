"""What the front looks for in a request's body: the model, and the beginning of its prompt. Pure.

JSON is scanned and not parsed: a list of a million numbers or an image in base64 would cost seconds and gigabytes.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

# What shapes JSON: texts, with the sign that makes one a key, and brackets.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"(?:\s*:\s*)?|[\[\]{}]', re.DOTALL)
_FIELD = re.compile(rb"content-disposition:[^\r\n]*;\s*name=(?:\"model\"|model)\s*\r\n(?:[^\r\n]+\r\n)*\r\n", re.I)
# A million texts in a list take 0.6 s, in a thread.
MAX_TOKENS, MAX_DEPTH = 2_000_000, 1000
# Of a prompt; in a conversation the beginning ends with the first message of the user, as that stays when it grows.
PREFIX_BYTES, MESSAGES_BYTES = 1024, 64 << 10
MAX_MODEL = 4096
PROMPTS = ("messages", "prompt", "input")


@dataclass(frozen=True)
class Found:
    """What a body names; None and empty where it does not."""

    model: str | None = None
    prefix: bytes = b""


def look(body: bytes, content_type: bytes) -> Found:
    """Find the model and the prompt's beginning; nothing in what is neither JSON nor a form."""
    kind = content_type.partition(b";")[0].strip().lower()
    if kind == b"multipart/form-data":
        return _in_form(body)
    return _in_json(body) if body.lstrip()[:1] == b"{" else Found()


def _in_form(body: bytes) -> Found:
    field = _FIELD.search(body)
    if field is None:
        return Found()
    value = body[field.end() : field.end() + MAX_MODEL].partition(b"\r\n")[0]
    return Found(value.decode("utf-8", "replace"))


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
        for number, match in enumerate(_TOKEN.finditer(self._body)):
            token = match.group()
            mark = token[:1]
            if mark == b'"':
                if self._depth == 1:
                    self._take_text(token, match)
                elif token == b'"user"' and self._depth == 3:
                    self._user = True
            elif mark in b"{[":
                self._depth += 1
            else:
                self._close(match)
                if self._depth == 0:
                    return
            if number > MAX_TOKENS or self._depth > MAX_DEPTH:
                break
        raise _Odd

    def _take_text(self, token: bytes, match: re.Match[bytes]) -> None:
        if not token.endswith(b'"'):
            self._keep(match.start(), PREFIX_BYTES)
            self._key, self._user = _text(token[: token.rindex(b'"') + 1]), False
            self._from = match.end() if self._key in PROMPTS else -1
        elif self._key == "model":
            self.model = _text(token)

    def _close(self, match: re.Match[bytes]) -> None:
        self._depth -= 1
        if self._depth == 2 and self._user and self._key == "messages":
            self._keep(match.end(), MESSAGES_BYTES)
        elif self._depth == 0:
            self._keep(match.start(), PREFIX_BYTES)

    def _keep(self, end: int, most: int) -> None:
        if self._from >= 0:
            self.prefix = self._body[self._from : min(end, self._from + most)].strip(b" \t\r\n,")
            self._from = -1


def _text(token: bytes) -> str:
    try:
        found = json.loads(token) if len(token) <= MAX_MODEL else ""
    except ValueError:
        raise _Odd from None
    return str(found)
