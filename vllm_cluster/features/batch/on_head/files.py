"""The files of a batch: which lines have an answer, which ended in an error, and which are left."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import Any

from vllm_cluster.features.batch.on_head.large import plain_at
from vllm_cluster.features.batch.on_head.lines import (
    BatchProblem,
    Place,
    Source,
    checksum,
    error_row,
    is_error,
    name_of,
    named_in,
    options_checksum,
    place_of,
)
from vllm_cluster.features.batch.on_head.row_file import RowFile

NOTHING, ANSWERED, FAILED = 0, 1, 2


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
    """The files, opened and compared before any host is asked: in memory are names, and five bytes for each line."""

    def __init__(self, files: BatchFiles, fields: Mapping[str, Any], stack: ExitStack) -> None:
        """Open them, until the stack is left.

        Raises:
            BatchProblem, OSError: one cannot be used, or they do not fit together.
        """
        files.source.open("rb").close()
        self._files, self._began = files, monotonic()
        self._source = Source(files.source)
        self.output, self._errors = _open(files.output, stack), _open(files.errors, stack)
        self._shape, self._lines = options_checksum(fields), 0
        self._sums, self._names, self.key = self._read_source(self._shape)
        self._rows = bytearray(len(self._sums))
        self.total = len(self._sums) - self._sums.count(0)
        self.answered = self.failed = self._last = 0
        self._in_order, self.models = True, set[str]()
        self._read_output()
        self._before = self.answered
        for row in self._errors.rows():
            if not is_error(row):  # what is cleared
                text = f"{files.errors} holds answers, and would be cleared"
                raise BatchProblem(text, usage=True, hint="name another output with -o")

    def _read_source(self, shape: int) -> tuple[array[int], dict[str, int], str]:
        """The checksum of each line, 0 where it is empty, the line of each name, and the batch's name by content."""
        sums, digest, names = array("I", [0]), hashlib.sha256(f"{shape}\n".encode()), dict[str, int]()
        for number, raw in self._source.lines():
            if (name := name_of(raw)) and names.setdefault(name, number) != number:
                text = f"{self._files.source}:{number}: custom_id {json.dumps(name)} is also that of line {names[name]}"
                raise BatchProblem(text, usage=True, hint="give each request a custom_id of its own")
            self._lines += 1
            sums.frombytes(bytes(4 * (number - len(sums))))
            sums.append(checksum(raw, shape))
            digest.update(b"%d %s\n" % (number, raw))
        return sums, names, digest.hexdigest()[:16]

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
        """Read what is left, each line behind its number.

        Raises:
            BatchProblem: the input is another one than was compared with the output.
        """
        seen = 0
        for number, raw in self._source.lines():
            seen += 1
            if not self._asks(Place(number, checksum(raw, self._shape))):
                raise self._changed()
            if not self._rows[number]:
                yield b"%d %s\n" % (number, raw)
        if seen != self._lines:
            raise self._changed()

    def _changed(self) -> BatchProblem:
        text = f"{self._files.source} has changed while it was read; none of its requests was started"
        return BatchProblem(text, usage=True, hint="run the same command again")

    def begin(self) -> None:
        """Cut off what a kill has torn, and forget the reasons of the run before."""
        self.output.begin()
        self._errors.clear()

    def take(self, row: bytes) -> None:
        """Add a row that came from elsewhere: of a line that has one it is not added, and a bad one is a reason.

        Raises:
            ValueError: it is of no line of the input as that is here.
            OSError: it cannot be written.
        """
        place, failed = place_of(row), is_error(row)
        if place is None or not self._asks(place):
            raise ValueError(f"{row[:60]!r} is of no line of {self._files.source}")
        if self._rows[place.line]:
            return
        try:
            name = named_in(row, place)
            if not (failed if name is None else self._names.get(name) == place.line):
                raise ValueError("does not have the custom_id of its line")
        except ValueError as error:
            text = f"the row that came for it cannot be taken: {error}"
            failed, row = True, error_row(place, self._name_of.get(place.line), None, "invalid_row", text)
        (self._errors if failed else self.output).append(row)
        self._count(place, FAILED if failed else ANSWERED)
        self.output.sync(monotonic())

    @cached_property
    def _name_of(self) -> dict[int, str]:
        """The name of each line, where a bad row came."""
        return {line: name for name, line in self._names.items()}

    def ensure_in_place(self) -> None:
        """Check that what was taken can be found.

        Raises:
            Displaced: another program has removed, replaced or changed a file.
        """
        for file in (self.output, self._errors):
            file.ensure_in_place()

    def finish(self) -> None:
        """Put the output in the order of the input; after it nothing else needs to have the rows.

        Raises:
            Displaced: another program has removed, replaced or changed a file.
        """
        self.ensure_in_place()
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
        found = plain_at(row, ("response", "body", "model")) if row else ""
    except ValueError:
        return ""
    return found if isinstance(found, str) else ""
