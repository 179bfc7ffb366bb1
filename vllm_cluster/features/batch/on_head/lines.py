"""A batch's input, line by line in OpenAI's batch format, and rows of its output, each of which names its line."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any

from vllm_cluster.features.batch.on_head.arrays import ArrayReader
from vllm_cluster.features.batch.on_head.large import is_deep, member, text_at

# Each path, and the list that an answer of it has.
PATHS: Mapping[str, str] = {
    "/v1/chat/completions": "choices",
    "/v1/completions": "choices",
    "/v1/embeddings": "data",
    "/v1/responses": "output",
    "/v1/score": "data",
    "/v1/rerank": "results",
    "/score": "data",
    "/rerank": "results",
}
# Of a line and of an answer; a row also has a name and a message, which JSON may write six times as long.
MAX_LINE, MAX_ANSWER, MAX_NAME, MAX_MESSAGE, MAX_ID = 16 << 20, 16 << 20, 1024, 2000, 256
MAX_ROW = MAX_ANSWER + (64 << 10)
# Of the input, read at once; behind each empty line as much is looked through.
_PIECE = 8 << 10
# With others it might be read as a file of another kind: JSON is YAML, too.
_ROW_KEYS = ("id", "line", "custom_id", "response", "error")
HEAD = b'{"id": "batch_req_'
# Eight digits are those of an older version, which had a CRC.
_ID = re.compile(rb'\{"id": "batch_req_([1-9][0-9]{0,17})_([0-9a-f]{16}|[0-9a-f]{8})", ("line": )?')
_TORN = re.compile(rb'\{"id": "batch_req_[1-9][0-9]{0,17}(_([0-9a-f]{0,16}|([0-9a-f]{8}){1,2}",?))?\Z')
OLD_DIGITS = 8
# Of a batch whose options add nothing to a request.
_NO_FIELDS = bytes(32)


class BatchProblem(Exception):
    """A reason for a person; `usage` where the files or options do not fit."""

    def __init__(self, message: str, *, usage: bool = False, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.usage, self.hint = message, usage, hint


class InUse(BatchProblem):
    """Another run writes the same file."""


class Displaced(BatchProblem):
    """Another program has taken rows away from where they were written: the same run brings them again."""


class BadLine(Exception):
    """A line without a request; `custom_id` where it could be read."""

    def __init__(self, message: str, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.message, self.custom_id = message, custom_id


@dataclass(frozen=True)
class Place:
    """Which line of the input, and the checksum of what it asks."""

    line: int
    checksum: str

    @property
    def id(self) -> str:
        """The row's own name: what was answered is read from these names alone."""
        return f"batch_req_{self.line}_{self.checksum}"


@dataclass(frozen=True)
class BatchLine:
    """One request; `model` is the one that it names itself, empty where it gets the served one."""

    place: Place
    custom_id: str
    path: str
    body: bytes
    model: str


def checksum(raw: bytes, options: bytes = _NO_FIELDS) -> str:
    """Return the checksum of a line, with that of the options that shape its request.

    No other line can be made that has the same one: whether an answer is to a line is decided by it.
    """
    return hashlib.sha256(options + raw.strip()).hexdigest()[:16]


def options_checksum(fields: Mapping[str, Any]) -> bytes:
    """Return the checksum of the fields that options add to each request."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).digest() if fields else _NO_FIELDS


def old_checksum(raw: bytes, options: int) -> int:
    """Return the checksum that rows of an older version have."""
    return zlib.crc32(raw.strip(), options) or 1


def old_options_checksum(fields: Mapping[str, Any]) -> int:
    """Return that of the options in an older version."""
    return zlib.crc32(json.dumps(fields, sort_keys=True).encode()) if fields else 0


class BatchKey:
    """The name by which the head keeps a batch: that of its requests and options, in the order of the input."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        """Begin with the fields that options add to each request."""
        self._digest = hashlib.sha256(f"{old_options_checksum(fields)}\n".encode())

    def add(self, number: int, raw: bytes) -> str:
        """Add the request of a line; returns the key of all so far."""
        self._digest.update(b"%d %s\n" % (number, raw))
        return self.text

    @property
    def text(self) -> str:
        """The key of all so far."""
        return self._digest.hexdigest()[:16]


def parse(raw: bytes, place: Place, served: str, fields: Mapping[str, Any]) -> BatchLine:
    """Read the request of a line: what the line gives comes before the fields of options.

    Raises:
        BadLine: it is not a request of the batch format.
    """
    try:
        row = json.loads(raw.decode())
    except UnicodeDecodeError:
        raise BadLine("not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        raise BadLine(f"not JSON: {json_fault(error)}") from None
    if is_deep(raw):
        raise BadLine("not JSON: nested too deeply")
    if not isinstance(row, dict):
        raise BadLine(f"must be an object, got {_kind(row)}")
    name = row.get("custom_id")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        got = json.dumps(name)[:40] if name is not None else "none"
        raise BadLine(f"custom_id must be a string of 1 to {MAX_NAME} characters, got {got}")
    if name_of(raw) != name:  # where its answer goes, it would have no name
        raise BadLine("not JSON: NaN and Infinity are words of Python alone")
    if row.get("method", "POST") != "POST":
        raise BadLine(f"method must be POST, got {json.dumps(row['method'])[:40]}", name)
    path, body = row.get("url"), row.get("body")
    if not isinstance(path, str) or path not in PATHS:
        raise BadLine(f"url must be one of {' '.join(PATHS)}, got {json.dumps(path)[:80]}", name)
    if not isinstance(body, dict):
        raise BadLine(f"body must be an object, got {_kind(body)}", name)
    if body.get("stream"):
        raise BadLine("body.stream must be false: a batch has whole answers", name)
    if not isinstance(body.get("model", ""), str):
        raise BadLine(f"body.model must be a string, got {_kind(body['model'])}", name)
    whole = json.dumps({"model": served, **fields, **body}).encode()
    return BatchLine(place, name, path, whole, body.get("model", ""))


def name_of(raw: bytes) -> str | None:
    """Read the custom_id of a line, where it has a valid one: names are kept in memory."""
    try:
        name = member(raw, "custom_id", None)
    except ValueError:
        return None
    return name if isinstance(name, str) and len(name) <= MAX_NAME else None


def no_constant(name: str) -> object:
    """Refuse what Python alone takes for JSON: other readers of the output would stop there."""
    raise ValueError(f"{name} is not JSON")


def json_fault(error: Exception) -> str:
    """Return why a text is not JSON."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg}, at character {error.colno}"
    return "nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"


def _kind(value: object) -> str:
    """What a JSON value is, in JSON's own words."""
    kinds = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")


def from_prompt(prompt: object, number: int) -> bytes:
    """Write an entry of a JSON array as a line of the batch format: a text is continued, messages are answered."""
    if isinstance(prompt, str):
        request: dict[str, Any] = {"url": "/v1/completions", "body": {"prompt": prompt}}
    elif isinstance(prompt, list):
        request = {"url": "/v1/chat/completions", "body": {"messages": prompt}}
    else:
        return json.dumps(prompt).encode()
    return json.dumps({"custom_id": f"prompt-{number}", "method": "POST", **request}).encode()


def answer_row(line: BatchLine, request_id: str, body: bytes) -> bytes:
    """Write the row of an answer; its JSON is kept as it came, on one line.

    Raises:
        ValueError: where it goes it could not be taken.
    """
    known = 0 < len(request_id) <= MAX_ID and request_id.isprintable()
    response = {"status_code": 200, "request_id": request_id if known else line.place.id}
    begin = b'%s, "response": %s, "body": ' % (_names(line.place, line.custom_id), json.dumps(response)[:-1].encode())
    # Within a string of JSON there is no line end.
    row = b"".join((begin, body.strip().replace(b"\r", b" ").replace(b"\n", b" "), b'}, "error": null}\n'))
    named_in(row, line.place)
    return row


def error_row(place: Place, custom_id: str | None, status: int | None, code: str, message: str) -> bytes:
    """Write the row of a line without an answer; it also has the line's number."""
    response = {"status_code": status, "request_id": place.id, "body": None} if status else None
    error = {"code": code, "message": message[:MAX_MESSAGE]}
    row = {"id": place.id, "line": place.line, "custom_id": custom_id, "response": response, "error": error}
    return json.dumps(row).encode() + b"\n"


def _names(place: Place, custom_id: str | None) -> bytes:
    """Write the beginning of an answer's row: its line's names."""
    return json.dumps({"id": place.id, "custom_id": custom_id})[:-1].encode()


def named_in(row: bytes, place: Place) -> str | None:
    """Read the custom_id of a row of that line; None where the line has no valid one.

    Raises:
        ValueError: it is too long, not JSON, nested too deeply, has a key that no row has, or its names in another
            place: of a key that comes twice readers take either.
    """
    if len(row) > MAX_ROW:
        raise ValueError(f"is longer than {MAX_ROW} bytes")
    found = member(row, "custom_id", no_constant, _ROW_KEYS)
    if not isinstance(found, str | None):
        raise ValueError("has no custom_id")
    names = _names(place, found)
    if is_error(row):
        names = names.replace(b", ", b', "line": %d, ' % place.line, 1)
    if not row.startswith(names + b", "):
        raise ValueError("has another custom_id too")
    return found


def place_of(row: bytes) -> Place | None:
    """Read the place that a row names; None where it is not a row of a batch."""
    found = _ID.match(row)
    return Place(int(found[1]), found[2].decode()) if found else None


def is_error(row: bytes) -> bool:
    """Whether a row is that of a line without an answer."""
    found = _ID.match(row)
    return bool(found and found[3])


def model_of(row: bytes) -> str:
    """Read the model of an answer; empty where it names none, as a reason does."""
    found = "" if is_error(row) else text_at(row, ("response", "body", "model"))
    return found if len(found) <= MAX_NAME else ""


def could_begin(rest: bytes) -> bool:
    """Whether a torn row may have begun so: what there is of its id has the form of one."""
    return bool(HEAD.startswith(rest) or _TORN.match(rest) or _ID.match(rest))


def begins(row: bytes, place: Place, custom_id: str | None) -> bool:
    """Whether the row of an answer to that line begins with its names; a torn one as far as it goes."""
    names = _names(place, custom_id) + b", "
    return row[: len(names)] == names[: len(row)]


def _skip_empty(file: BufferedReader[FileIO]) -> int:
    """Read over empty lines that are in memory already, and return how many: one at a time, 300 MB take minutes."""
    there = file.peek()
    end = there.rfind(b"\n", 0, len(there) - len(there.lstrip())) + 1
    return file.read(end).count(b"\n")


class Source:
    """A file of requests; it is read twice: to compare it with the output, then to send what has no answer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_array = self._begins_array()

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Read each line that is not empty, without its end, by its number."""
        if self._is_array:
            yield from ((number, from_prompt(entry, number)) for number, entry in enumerate(self._entries(), 1))
            return
        with BufferedReader(self.path.open("rb", buffering=0), _PIECE) as file:
            number = 0
            while raw := file.readline(MAX_LINE):
                number += 1
                if len(raw) == MAX_LINE and not raw.endswith(b"\n"):
                    # It is a bad line, and its beginning is enough to name it.
                    raw = raw[:80]
                    while (more := file.readline(MAX_LINE)) and not more.endswith(b"\n"):
                        pass
                if line := raw.removeprefix(b"\xef\xbb\xbf" if number == 1 else b"").strip():
                    yield number, line
                else:
                    number += _skip_empty(file)

    def _begins_array(self) -> bool:
        with self.path.open("rb") as file:
            while (first := file.read(1)) and first in b" \t\r\n\xef\xbb\xbf":
                pass
            return first == b"["

    def _entries(self) -> Iterator[object]:
        with self.path.open(encoding="utf-8-sig") as file:
            reader = ArrayReader(file)
            try:
                yield from reader.entries()
            except (ValueError, RecursionError) as error:
                fault = "nested too deeply" if isinstance(error, RecursionError) else str(error)
                text = f"{self.path}:{reader.line}: not a JSON array: {fault}, at character {reader.column}"
                raise BatchProblem(text, usage=True) from None
