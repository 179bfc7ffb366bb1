"""The input of a batch, line by line: JSON lines of any length of file, or one JSON array of prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from vllm_cluster.batch.answered import Answered
from vllm_cluster.batch.lines import Place, checksum, from_prompt, json_fault
from vllm_cluster.batch.problems import BatchProblem

# A longer line holds no prompt; a JSON array is read as a whole.
MAX_LINE, MAX_ARRAY = 64 << 20, 512 << 20


class Source:
    """A file of requests; it is read twice: to compare and count, then to send."""

    def __init__(self, path: Path, copies: int, options: int) -> None:
        """`options` is the checksum of what the call adds to each request."""
        self._path, self._copies, self._options = path, copies, options
        self._array = self._read_array()

    def count(self, answered: Answered, output: Path) -> int:
        """The number of requests.

        Raises:
            BatchProblem: the output holds answers to another input.
        """
        total = last = 0
        for number, raw in self._lines():
            last = number
            total += self._copies
            wanted = checksum(raw, self._options) if number <= answered.last else 0
            for copy in range(1, self._copies + 1) if wanted else ():
                if answered.checksum(number, copy) not in (0, wanted):
                    self._refuse(output, f"its answer to line {number} is to another line or with other options")
        if answered.last > last:
            self._refuse(output, f"it answers line {answered.last}, and the input ends with line {last}")
        return total

    def _refuse(self, output: Path, why: str) -> None:
        text = f"{output} holds the answers to another input than {self._path}: {why}"
        raise BatchProblem(text, usage=True, hint="name another output with -o")

    def open(self, answered: Answered) -> Iterator[tuple[Place, bytes]]:
        """What is not answered, in the order of the input."""
        for number, raw in self._lines():
            found = checksum(raw, self._options)
            for copy in range(1, self._copies + 1):
                if not answered.checksum(number, copy):
                    yield Place(number, copy, found), raw

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        if self._array is not None:
            yield from ((number, from_prompt(entry, number)) for number, entry in enumerate(self._array, 1))
            return
        with self._path.open("rb") as file:
            number = 0
            while raw := file.readline(MAX_LINE):
                number += 1
                if len(raw) == MAX_LINE and not raw.endswith(b"\n"):
                    # It is a bad line, and its beginning is enough to name it.
                    raw = raw[:80]
                    while (more := file.readline(MAX_LINE)) and not more.endswith(b"\n"):
                        pass
                if raw.strip():
                    yield number, raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw

    def _read_array(self) -> list[object] | None:
        with self._path.open("rb") as file:
            while (first := file.read(1)) and first in b" \t\r\n\xef\xbb\xbf":
                pass
            if first != b"[":
                return None
            raw = first + file.read(MAX_ARRAY)
        if len(raw) > MAX_ARRAY:
            text = f"{self._path}: a JSON array is read as a whole and may have {MAX_ARRAY >> 20} MB"
            raise BatchProblem(text, usage=True, hint="write one request a line (JSON lines)")
        try:
            found = json.loads(raw)
        except (ValueError, RecursionError) as error:
            where = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
            text = f"{self._path}{where}: not a JSON array: {json_fault(error)}"
            raise BatchProblem(text, usage=True) from None
        return list(found)
