"""The files of a batch on the machine that asks for it: its input line by line, what is answered, what a row may be."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from vllm_cluster.batch.lines import (
    MAX_LINE,
    Place,
    checksum,
    from_prompt,
    is_error,
    json_fault,
    options_checksum,
    place_of,
)
from vllm_cluster.batch.problems import BatchProblem
from vllm_cluster.batch.rows import RowFile

NOTHING, ANSWERED, FAILED = 0, 1, 2


# A JSON array is read as a whole.
MAX_ARRAY = 512 << 20


class Source:
    """A file of requests; it is read twice: to compare it with the output, then to send what has no answer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._array = self._read_array()

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Read each line that is not empty, without its end, by its number."""
        if self._array is not None:
            yield from ((number, from_prompt(entry, number)) for number, entry in enumerate(self._array, 1))
            return
        with self.path.open("rb") as file:
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

    def _read_array(self) -> list[object] | None:
        with self.path.open("rb") as file:
            while (first := file.read(1)) and first in b" \t\r\n\xef\xbb\xbf":
                pass
            if first != b"[":
                return None
            raw = first + file.read(MAX_ARRAY)
        if len(raw) > MAX_ARRAY:
            text = f"{self.path}: a JSON array is read as a whole and may have {MAX_ARRAY >> 20} MB"
            raise BatchProblem(text, usage=True, hint="write one request a line (JSON lines)")
        try:
            found = json.loads(raw)
        except (ValueError, RecursionError) as error:
            where = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
            text = f"{self.path}{where}: not a JSON array: {json_fault(error)}"
            raise BatchProblem(text, usage=True) from None
        return list(found)


@dataclass(frozen=True)
class BatchFiles:
    """What is read, and where answers go."""

    source: Path
    output: Path

    @property
    def errors(self) -> Path:
        """Where lines without an answer go."""
        return self.output.with_suffix(f".errors{self.output.suffix or '.jsonl'}")


@dataclass(frozen=True)
class BatchResult:
    """The requests of the input, those answered in all and by this run, those without an answer, and its tokens."""

    total: int
    answered: int
    answered_now: int
    failed: int
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0


class Work:
    """The files, opened and compared before any host is asked: five bytes of memory for each line."""

    def __init__(self, files: BatchFiles, fields: Mapping[str, Any], stack: ExitStack) -> None:
        """Open them, until the stack is left.

        Raises:
            BatchProblem, OSError: one cannot be used, or they do not fit together.
        """
        files.source.open("rb").close()
        self._files, self._began = files, monotonic()
        self._source = Source(files.source)
        self.output, self._errors = _open(files.output, stack), _open(files.errors, stack)
        self._sums, self.key = self._read_source(options_checksum(fields))
        self._rows = bytearray(len(self._sums))
        self.total = len(self._sums) - self._sums.count(0)
        self.answered = self.failed = self._last = 0
        self._in_order, self.models = True, set[str]()
        self._read_output()
        self._before = self.answered
        for _ in self._errors.rows():  # only a file of errors is cleared
            pass

    def _read_source(self, shape: int) -> tuple[array[int], str]:
        """The checksum of each line, 0 where it is empty, and the name of the batch by content."""
        sums, digest = array("I", [0]), hashlib.sha256(f"{shape}\n".encode())
        for number, raw in self._source.lines():
            sums.frombytes(bytes(4 * (number - len(sums))))
            sums.append(checksum(raw, shape))
            digest.update(b"%d %s\n" % (number, raw))
        return sums, digest.hexdigest()[:16]

    def _read_output(self) -> None:
        row, first = b"", b""
        for row in self.output.rows():
            first = first or row
            place = place_of(row)
            if place is None or is_error(row) or not self._asks(place):
                line = place.line if place else 0
                text = f"{self._files.output} holds the answers to another input than {self._files.source}: its answer "
                text += f"to line {line} is to another line, or with other options"
                raise BatchProblem(text, usage=True, hint="name another output with -o")
            if self._rows[place.line]:
                raise BatchProblem(f"{self._files.output} has two answers to line {place.line}", usage=True)
            self._count(place, ANSWERED)
        self.models = {_model(one) for one in (first, row)} - {""}

    def _asks(self, place: Place) -> bool:
        return place.line < len(self._sums) and self._sums[place.line] == place.checksum

    def _count(self, place: Place, what: int) -> None:
        self._rows[place.line] = what
        if what == FAILED:
            self.failed += 1
            return
        self.answered += 1
        self._in_order, self._last = self._in_order and place.line > self._last, place.line

    @property
    def left(self) -> int:
        """How many requests have neither an answer nor a reason for none."""
        return self.total - self.answered - self.failed

    def lines(self) -> Iterator[bytes]:
        """Read what is left, each line behind its number."""
        for number, raw in self._source.lines():
            if not self._rows[number]:
                yield b"%d %s\n" % (number, raw)

    def begin(self) -> None:
        """Cut off what a kill has torn, and forget the reasons of the run before."""
        self.output.begin()
        self._errors.clear()

    def take(self, row: bytes) -> None:
        """Add a row that came from elsewhere; one that is there is not added again.

        Raises:
            ValueError: it is of no line of the input as that is here.
            OSError: it cannot be written.
        """
        place = place_of(row)
        if place is None or not self._asks(place):
            raise ValueError(f"{row[:60]!r} is of no line of {self._files.source}")
        if self._rows[place.line]:
            return
        failed = is_error(row)
        (self._errors if failed else self.output).append(row)
        self._count(place, FAILED if failed else ANSWERED)
        self.output.sync(monotonic())

    def finish(self) -> None:
        """Put the output in the order of the input."""
        if not self._in_order:
            self.output.sort()
            self._in_order = True

    def summary(self, prompt_tokens: int = 0, completion_tokens: int = 0) -> BatchResult:
        """Report what was done."""
        now, seconds = self.answered - self._before, monotonic() - self._began
        return BatchResult(
            self.total, self.answered, now, self.failed, prompt_tokens, completion_tokens, round(seconds, 3)
        )


def _open(path: Path, stack: ExitStack) -> RowFile:
    file = RowFile(path)
    stack.callback(file.close)
    return file


def _model(row: bytes) -> str:
    try:
        found = json.loads(row)["response"]["body"]["model"]
    except (ValueError, KeyError, TypeError):
        return ""
    return found if isinstance(found, str) else ""
