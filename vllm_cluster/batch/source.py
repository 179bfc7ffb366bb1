"""The input of a batch, line by line: JSON lines of any length of file, or one JSON array of prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from vllm_cluster.batch.lines import MAX_LINE, from_prompt, json_fault
from vllm_cluster.batch.problems import BatchProblem

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
