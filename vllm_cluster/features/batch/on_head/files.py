"""The files of a batch: which lines have an answer, which ended in an error, and which are left."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from vllm_cluster.features.batch.on_head.lines import (
    OLD_DIGITS,
    BatchKey,
    BatchProblem,
    Displaced,
    Place,
    Source,
    begins,
    checksum,
    error_row,
    is_error,
    model_of,
    name_of,
    named_in,
    old_checksum,
    old_options_checksum,
    options_checksum,
    place_of,
)
from vllm_cluster.features.batch.on_head.row_file import RowFile

NOTHING, ANSWERED, FAILED = 0, 1, 2
# How many are read until that is reported again.
_REPORTED = 10_000


@dataclass(frozen=True)
class BatchFiles:
    """What is read, and where answers go."""

    source: Path
    output: Path

    @property
    def errors(self) -> Path:
        """Where lines without an answer go: of each output another file, also of q and q.jsonl."""
        return self.output.with_suffix(f".errors{self.output.suffix}")


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


class _Requests:
    """The requests of an input in their order: their lines, checksums and names. Empty lines take no memory."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._shape, self._old_shape = options_checksum(fields), old_options_checksum(fields)
        self._lines, self._sums, self._old_sums = array("Q"), array("Q"), array("I")
        self.names: list[str | None] = []
        self.key = BatchKey(fields)

    def add(self, number: int, raw: bytes, name: str | None) -> None:
        """Add the request of a line."""
        self._lines.append(number)
        self._sums.append(int(checksum(raw, self._shape), 16))
        self._old_sums.append(old_checksum(raw, self._old_shape))
        self.names.append(name)
        self.key.add(number, raw)

    def of_line(self, line: int) -> int | None:
        """Which request a line has."""
        at = bisect_left(self._lines, line)
        return at if at < len(self._lines) and self._lines[at] == line else None

    def find(self, place: Place | None) -> int | None:
        """Which request a place is of; None where its line has another one."""
        at = self.of_line(place.line) if place else None
        if place is None or at is None:
            return None
        sums = self._old_sums if len(place.checksum) == OLD_DIGITS else self._sums
        return at if sums[at] == int(place.checksum, 16) else None

    def find_line(self, number: int, raw: bytes) -> int | None:
        """Which request this line is, as it was added."""
        return self.find(Place(number, checksum(raw, self._shape)))


class Work:
    """The files, opened and compared before any host is asked: in memory are names, and 30 bytes for each request.

    Nothing that was there is cut or removed before a head has answered with a row, and only what is of this input.
    """

    def __init__(
        self,
        files: BatchFiles,
        fields: Mapping[str, Any],
        stack: ExitStack,
        report: Callable[[Path, int], None] = lambda _path, _count: None,
    ) -> None:
        """Open them, until the stack is left; how many requests and rows are read is reported now and then.

        Raises:
            BatchProblem, OSError: one cannot be used, or they do not fit together.
        """
        files.source.open("rb").close()
        self._files, self._began, self._report = files, monotonic(), report
        self._source, self._requests = Source(files.source), _Requests(fields)
        self.output = _open(files.output, stack)
        self._read_source()
        self.key, self.total = self._requests.key.text, len(self._requests.names)
        self._rows = bytearray(self.total)
        self.answered = self.failed = 0
        self._last, self._in_order, self.models = -1, True, set[str]()
        self._read_output()
        self._before = self.answered
        # Where nothing is left there is none to write, and the folder may take no new file.
        self._errors = _open(files.errors, stack, follow=False) if self.left else None
        self._old_reasons = self._read_reasons(self._errors) if self._errors else set[int]()
        self._keeps = False

    def _read_source(self) -> None:
        names = dict[str, int]()
        for number, raw in self._source.lines():
            if (name := name_of(raw)) and names.setdefault(name, number) != number:
                text = f"{self._files.source}:{number}: custom_id {json.dumps(name)} is also that of line {names[name]}"
                raise BatchProblem(text, usage=True, hint="give each request a custom_id of its own")
            self._requests.add(number, raw, name)
            if not len(self._requests.names) % _REPORTED:
                self._report(self._files.source, len(self._requests.names))

    def _read_output(self) -> None:
        row, first = b"", b""
        for count, row in enumerate(self.output.rows(), 1):
            first = first or row
            at = self._asked_by(row)
            if self._rows[at]:
                text = f"{self._files.output} has two answers to line {_row_line(row)}"
                raise BatchProblem(text, usage=True, hint="name another output with -o")
            self._count(at, ANSWERED)
            if not count % _REPORTED:
                self._report(self._files.output, count)
        if place_of(self.output.torn):
            self._asked_by(self.output.torn)
        self.models = {model_of(one) for one in (first, row)} - {""}

    def _asked_by(self, row: bytes) -> int:
        """Which request a row of the output answers.

        Raises:
            BatchProblem: none of this input, by its place and its name.
        """
        place = place_of(row)
        at = self._requests.find(place)
        if place and at is not None and begins(row, place, self._requests.names[at]):
            return at
        text = f"{self._files.output} holds the answers to another input than {self._files.source}: its answer "
        text += f"to line {_row_line(row)} is to another line, or with other options"
        raise BatchProblem(text, usage=True, hint="name another output with -o")

    def _read_reasons(self, errors: RowFile) -> set[int]:
        """The requests that have a reason of an earlier run; what is added later takes the place of them all.

        Raises:
            BatchProblem: there is another row, which would be lost.
        """
        found = set[int]()
        for row in errors.rows():
            self._ensure_reason(row)
            if (at := self._requests.find(place_of(row))) is not None:
                found.add(at)
        if place_of(errors.torn):
            self._ensure_reason(errors.torn)
        return found

    def _ensure_reason(self, row: bytes) -> None:
        path, place = self._files.errors, place_of(row)
        if not is_error(row):
            text = f"{path} holds answers, and would be cleared"
            raise BatchProblem(text, usage=True, hint="name another output with -o")
        if place and self._requests.find(place) is None and not self._was_corrected(place, row):
            text = f"{path} holds the reasons of another input than {self._files.source}, and would be cleared: "
            text += f"its reason for line {place.line} is of another request"
            raise BatchProblem(text, usage=True, hint="move it away, or name another output with -o")

    def _was_corrected(self, place: Place, row: bytes) -> bool:
        """Whether the request of a reason is there by its line and its name, though a person has changed it.

        One that was not JSON had no name, and its reason has nothing but that in it.
        """
        at = self._requests.of_line(place.line)
        try:
            return at is not None and named_in(row, place) in (None, self._requests.names[at])
        except ValueError:
            return False

    def keep_reasons(self) -> None:
        """Leave the reasons of earlier runs where they are: a batch that is stopped brings only some again."""
        self._keeps = True

    def _count(self, at: int, what: int) -> None:
        self._rows[at] = what
        if what == FAILED:
            self.failed += 1
            return
        self.answered += 1
        self._in_order, self._last = self._in_order and at > self._last, at

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
            at = self._requests.find_line(number, raw)
            if at is None:
                raise self._changed()
            if not self._rows[at]:
                yield b"%d %s\n" % (number, raw)
        if seen != self.total:
            raise self._changed()

    def _changed(self) -> BatchProblem:
        text = f"{self._files.source} has changed while it was read; none of its requests was started"
        return BatchProblem(text, usage=True, hint="run the same command again")

    def take(self, row: bytes) -> None:
        """Add a row that came from elsewhere: of a line that has one it is not added, and a bad one is a reason.

        With the first one the reasons of the run before are cleared.

        Raises:
            ValueError: it is of no line of the input as that is here.
            Displaced, OSError: it cannot be written.
        """
        place, failed = place_of(row), is_error(row)
        at = self._requests.find(place)
        if place is None or at is None:
            raise ValueError(f"{row[:60]!r} is of no line of {self._files.source}")
        if self._rows[at] or self._errors is None:
            return
        known = self._requests.names[at]
        try:
            name = named_in(row, place)
            if not (failed if name is None else name == known):
                raise ValueError("does not have the custom_id of its line")
        except ValueError as error:
            text = f"the row that came for it cannot be taken: {error}"
            failed, row = True, error_row(place, known, None, "invalid_row", text)
        if not self._keeps and not self.answered_now and not self.failed:
            self._errors.clear()
            self._old_reasons.clear()
        if not failed:
            self.output.append(row)
            self.models |= {model_of(row)} - {""}
        elif at not in self._old_reasons:
            self._errors.append(row)
        self._count(at, FAILED if failed else ANSWERED)
        self.output.sync(monotonic())

    @property
    def answered_now(self) -> int:
        """How many answers this run has added."""
        return self.answered - self._before

    def ensure_in_place(self) -> None:
        """Check that what was taken can be found.

        Raises:
            Displaced: another program has removed, replaced or changed a file.
        """
        for file in filter(None, (self.output, self._errors)):
            file.ensure_in_place()

    def finish(self) -> str:
        """Put the output in the order of the input; after it nothing else needs to have the rows.

        Returns:
            Why it keeps its order, where there is no room for a second file beside it.

        Raises:
            Displaced: another program has removed, replaced or changed a file.
        """
        self.ensure_in_place()
        if self._in_order:
            return ""
        self._in_order = True  # it is tried once
        try:
            self.output.sort()
        except Displaced:
            raise
        except BatchProblem as error:
            return error.message
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def summary(self, prompt_tokens: int = 0, completion_tokens: int = 0) -> BatchResult:
        """Report what was done."""
        counts = (self.total, self.answered, self.answered_now, self.failed)
        return BatchResult(*counts, prompt_tokens, completion_tokens, round(monotonic() - self._began, 3))


def _open(path: Path, stack: ExitStack, *, follow: bool = True) -> RowFile:
    file = RowFile(path, follow=follow)
    stack.callback(file.close)
    return file


def _row_line(row: bytes) -> int:
    """Which line a row names; 0 where it names none."""
    place = place_of(row)
    return place.line if place else 0
