"""What of an input is answered, and the names in use: twelve bytes for each request."""

from __future__ import annotations

from array import array
from bisect import bisect_left

from vllm_cluster.batch.lines import Place
from vllm_cluster.batch.problems import BatchProblem

# More lines in one file are not read: a number that a row names must not take all memory.
MAX_PLACES = 1 << 30


class Answered:
    """The checksum of each answered request by its place."""

    def __init__(self, copies: int) -> None:
        self.copies, self.count = copies, 0
        self._sums = array("I")
        self.names = Names()

    def add(self, place: Place, where: str) -> None:
        """Note an answer that `where` holds.

        Raises:
            BatchProblem: it is of more repetitions than are asked for, or the second one of its place.
        """
        if place.copy > self.copies:
            text = f"{where} was made with --repeat {place.copy} or more, got --repeat {self.copies}"
            raise BatchProblem(text, usage=True, hint="name another output with -o")
        index = self._index(place.line, place.copy)
        if index >= MAX_PLACES:
            raise BatchProblem(f"{where} names line {place.line}, which is too much", usage=True)
        if index >= len(self._sums):
            self._sums.frombytes(bytes(4 * max(index + 1 - len(self._sums), min(len(self._sums), 1 << 20), 1024)))
        if self._sums[index]:
            raise BatchProblem(f"{where} has two answers to line {place.line}", usage=True)
        self._sums[index] = place.checksum
        self.count += 1
        self.last = max(self.last, place.line)

    last = 0

    def checksum(self, line: int, copy: int) -> int:
        """The checksum of what was answered there; 0 where nothing was."""
        index = self._index(line, copy)
        return self._sums[index] if index < len(self._sums) else 0

    def _index(self, line: int, copy: int) -> int:
        return (line - 1) * self.copies + copy - 1


class Names:
    """Which names are in use, by 64 bits of their hash: ten million are mixed up in one run of 300,000.

    A set of Python's own takes eight times the memory. Few buckets have little to hold, many little to move.
    """

    BUCKETS = 1 << 14

    def __init__(self) -> None:
        self._buckets: dict[int, array[int]] = {}

    def add(self, name: bytes) -> bool:
        """Add a name; whether it is a new one."""
        value = hash(name) & (1 << 64) - 1
        bucket = self._buckets.setdefault(value % self.BUCKETS, array("Q"))
        index = bisect_left(bucket, value)
        if index < len(bucket) and bucket[index] == value:
            return False
        bucket.insert(index, value)
        return True
