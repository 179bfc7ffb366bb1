"""The lines of a batch: OpenAI's batch format in, and rows of its output format out, each of which names its line."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/score",
    "/v1/rerank",
    "/score",
    "/rerank",
)
HEAD = b'{"id": "batch_req_'
_NAME = re.compile(rb'"custom_id": ("[^"\\]*(?:\\.[^"\\]*)*")')
_ID = re.compile(rb'\{"id": "batch_req_([1-9][0-9]{0,17})\.([1-9][0-9]{0,8})_([0-9a-f]{8})", ')


# What Python's parser calls it, and what it is.
_FAULTS = {
    "Invalid control character": r"a string has a line break, a tab or another control character: write \n or \t",
    "Unterminated string": "a string has no closing quote",
    "Invalid \\": r"a backslash is before a character that it does not escape: write \\",
    "Expecting property name": "a key in double quotes is expected",
    "Expecting value": "a value is expected",
    "Expecting ',' delimiter": "a comma is missing",
    "Expecting ':' delimiter": "a colon is missing",
    "Illegal trailing comma": "a comma is too many",
    "Extra data": "more follows after the end of the value: write one request a line",
}


class BadLine(Exception):
    """A line without a request; `custom_id` where it could be read."""

    def __init__(self, message: str, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.message, self.custom_id = message, custom_id


@dataclass(frozen=True)
class Place:
    """Which line of the input, which repetition of it, and the checksum of what it asks."""

    line: int
    copy: int
    checksum: int

    @property
    def id(self) -> str:
        """The row's own name: what was answered is read from these names alone."""
        return f"batch_req_{self.line}.{self.copy}_{self.checksum:08x}"


@dataclass(frozen=True)
class BatchLine:
    """One request; `own_model` is whether the line names its model itself."""

    place: Place
    custom_id: str
    path: str
    body: Mapping[str, Any]
    own_model: bool


def checksum(raw: bytes, options: int = 0) -> int:
    """The checksum of a line, with that of the options that shape its request; never 0."""
    return zlib.crc32(raw.strip(), options) or 1


def options_checksum(defaults: Mapping[str, Any]) -> int:
    """The checksum of the fields that options add to each request."""
    return zlib.crc32(json.dumps(defaults, sort_keys=True).encode()) if defaults else 0


def parse(raw: bytes, place: Place, copies: int, model: str, defaults: Mapping[str, Any]) -> BatchLine:
    """The request of a line: what the line gives comes before the defaults.

    Raises:
        BadLine: it is not a request of the batch format.
    """
    try:
        row = json.loads(raw.decode())
    except UnicodeDecodeError:
        raise BadLine("not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        raise BadLine(f"not JSON: {json_fault(error)}") from None
    if not isinstance(row, dict):
        raise BadLine(f"must be an object, got {_kind(row)}")
    name = row.get("custom_id")
    if not isinstance(name, str) or not name:
        raise BadLine(f"custom_id must be a string, got {json.dumps(name)[:40] if name is not None else 'none'}")
    if row.get("method", "POST") != "POST":
        raise BadLine(f"method must be POST, got {json.dumps(row['method'])[:40]}", name)
    path, body = row.get("url"), row.get("body")
    if path not in PATHS:
        raise BadLine(f"url must be one of {' '.join(PATHS)}, got {json.dumps(path)[:80]}", name)
    if not isinstance(body, dict):
        raise BadLine(f"body must be an object, got {_kind(body)}", name)
    if body.get("stream"):
        raise BadLine("body.stream must be false: a batch has whole answers", name)
    whole = {"model": model, **defaults, **body}
    return BatchLine(place, name if copies == 1 else f"{name}-{place.copy}", path, whole, "model" in body)


def json_fault(error: Exception) -> str:
    """Why a text is not JSON."""
    if isinstance(error, json.JSONDecodeError):
        words = next((plain for begin, plain in _FAULTS.items() if error.msg.startswith(begin)), error.msg)
        return f"{words}, at character {error.colno}"
    return "nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"


def _kind(value: object) -> str:
    """What a JSON value is, in JSON's own words."""
    kinds = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")


def from_prompt(prompt: object, number: int) -> bytes:
    """An entry of a JSON array as a line of the batch format: a text is continued, messages are answered."""
    if isinstance(prompt, str):
        request: dict[str, Any] = {"url": "/v1/completions", "body": {"prompt": prompt}}
    elif isinstance(prompt, list):
        request = {"url": "/v1/chat/completions", "body": {"messages": prompt}}
    else:
        return json.dumps(prompt).encode()
    return json.dumps({"custom_id": f"prompt-{number}", "method": "POST", **request}).encode()


def answer_row(line: BatchLine, body: Mapping[str, Any]) -> bytes:
    """The row of an answer."""
    response = {"status_code": 200, "request_id": str(body.get("id") or line.place.id), "body": body}
    return _row(line.place, line.custom_id, response, None)


def error_row(place: Place, custom_id: str | None, status: int | None, code: str, message: str) -> bytes:
    """The row of a line without an answer; it also has the line's number."""
    request = {"status_code": status, "request_id": place.id, "body": None} if status else None
    return _row(place, custom_id, request, {"code": code, "message": message}, line=place.line)


def _row(place: Place, custom_id: str | None, response: object, error: object, **more: object) -> bytes:
    row = {"id": place.id, "custom_id": custom_id, **more, "response": response, "error": error}
    return json.dumps(row).encode() + b"\n"


def place_of(row: bytes) -> Place | None:
    """The place that a row of an output names; None where it is not such a row."""
    found = _ID.match(row)
    return Place(int(found[1]), int(found[2]), int(found[3], 16)) if found else None


def name_in(row: bytes) -> bytes | None:
    """The custom_id in a row of an output, as `name_of`."""
    start = _ID.match(row)
    found = _NAME.match(row, start.end()) if start else None
    return found[1] if found else None


def name_of(custom_id: str) -> bytes:
    """A custom_id as rows have it."""
    return json.dumps(custom_id).encode()


def could_begin(rest: bytes) -> bool:
    """Whether a torn row may have begun so."""
    return HEAD.startswith(rest[: len(HEAD)])
