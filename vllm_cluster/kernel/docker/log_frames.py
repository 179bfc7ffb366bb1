"""What Docker sends of a container's log, or of a command in one: frames, each of one output."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime

HEADER = 8
# "2026-11-22T13:41:26.844609364Z": Docker writes all nine digits, so that times can be compared as text.
STAMP = 30
STDERR = 2
# Docker cuts a line into frames of 16 kB, and writes at most 32 kB at once. Each reader keeps one that is not whole.
MAX_FRAME = 128 << 10
# Standard input, output, error, and Docker's own errors. Of each a line may be open: of 256 they took 17 MB a host.
OUTPUTS = 4
# What is kept of standard error.
MAX_ERRORS = 4000
# What is kept of a line.
MAX_LINE = 64 << 10
# Lines of one time; or those since the host's clock was put back. They take 71 bytes each, of each host.
KEPT = 1 << 12

StampedLine = tuple[bytes, bytes]


def _size(data: bytes, at: int) -> int:
    """The length of the frame that begins there.

    Raises:
        ValueError: Docker sends no such frame.
    """
    size = int.from_bytes(data[at + 4 : at + HEADER], "big")
    if size > MAX_FRAME or data[at] >= OUTPUTS:
        raise ValueError(f"a frame of {size} bytes of output {data[at]}")
    return size


class OutputFrames:
    """Takes standard output and standard error of a command apart, as they come."""

    def __init__(self) -> None:
        self._rest = b""
        self._errors = b""

    def parts(self, data: bytes) -> list[tuple[bool, bytes]]:
        """What these bytes complete: whether it is of standard error, and the content.

        Raises:
            ValueError: it is not framed as Docker does.
        """
        data, at, found = self._rest + data, 0, list[tuple[bool, bytes]]()
        while len(data) - at >= HEADER:
            size = _size(data, at)
            if len(data) - at - HEADER < size:
                break
            found.append((data[at] == STDERR, data[at + HEADER : at + HEADER + size]))
            at += HEADER + size
        self._rest = data[at:]
        return found

    def feed(self, data: bytes) -> bytes:
        """The standard output in these bytes; the end of standard error is kept."""
        found = self.parts(data)
        errors = self._errors + b"".join(content for of_errors, content in found if of_errors)
        self._errors = errors[-MAX_ERRORS:]
        return b"".join(content for of_errors, content in found if not of_errors)

    def errors(self) -> str:
        """The end of standard error."""
        return self._errors.decode("utf-8", "replace").strip()


class LogFrames:
    """Puts frames together into lines: each once, with the time of its first part, at most `MAX_LINE` bytes of it."""

    def __init__(self) -> None:
        self._rest = b""
        # By output: the time of a line whose end has not come, its beginning, and the length of the whole.
        self._open: dict[int, tuple[bytes, bytearray, int]] = {}

    def feed(self, data: bytes) -> list[StampedLine]:
        """The lines that these bytes complete.

        Raises:
            ValueError: it is not framed as Docker does.
        """
        data = self._rest + data if self._rest else data
        at, end, lines, parts = 0, len(data), list[StampedLine](), self._open
        while end - at >= HEADER:
            size = _size(data, at)
            begin = at + HEADER
            stop = begin + size
            if stop > end:
                break
            if parts or data[stop - 1] != 10:
                self._add(data[at], data[begin:stop], lines)
            else:
                lines.append((data[begin : begin + STAMP], data[begin + STAMP + 1 : stop - 1]))
            at = stop
        self._rest = data[at:]
        return lines

    def _add(self, output: int, frame: bytes, lines: list[StampedLine]) -> None:
        """Take a part of a line, or a line while another is open."""
        stamp, text = frame[:STAMP], frame[STAMP + 1 :]
        ended = text.endswith(b"\n")
        stamp, kept, length = self._open.pop(output, (stamp, bytearray(), 0))
        kept += text.removesuffix(b"\n")[: MAX_LINE - len(kept)]
        length += len(text) - ended
        if ended:
            lines.append((stamp, shortened(bytes(kept), length)))
        else:
            self._open[output] = (stamp, kept, length)


def shortened(kept: bytes, length: int) -> bytes:
    """What was kept of a line, and how much was not."""
    return kept if length <= len(kept) else kept + b" ... [%d bytes cut]" % (length - len(kept))


class Position:
    """How far a log has been read, so that it can be read on after a cut without gap or repeat.

    Docker finds a place by its time alone: the first line that is not older. So the log is asked for again from its
    latest time on, and the lines from the first of that time to the last that was read are known by their times.
    """

    def __init__(self) -> None:
        self._latest = b""
        self._read: deque[bytes] = deque(maxlen=KEPT)
        self._again: deque[bytes] = deque()

    def resume(self) -> int | None:
        """From when to ask for the log again, in nanoseconds of the host's clock; None where nothing was read."""
        self._again = deque(self._read)
        return nanoseconds(self._latest) if self._latest else None

    def fresh(self, lines: Sequence[StampedLine]) -> Sequence[StampedLine]:
        """These lines without those that were read before the cut."""
        if self._again:
            lines = [line for line in lines if not self._seen(line[0])]
        latest, read = self._latest, self._read
        for stamp, _ in lines:
            if stamp > latest:
                latest = stamp
                read.clear()
            read.append(stamp)
        self._latest = latest
        return lines

    def _seen(self, stamp: bytes) -> bool:
        again = self._again
        # Some versions of Docker leave out each line that is older, also behind one that is not.
        while again and again[0] != stamp and again[0] < self._latest:
            again.popleft()
        if again and again[0] == stamp:
            again.popleft()
            return True
        again.clear()
        return False


class Stamps:
    """Docker's times as numbers; the second is read once for all its lines."""

    def __init__(self) -> None:
        self._second, self._base = b"", 0

    def __call__(self, stamp: bytes) -> int:
        """Nanoseconds since 1970.

        Raises:
            ValueError: it cannot be read.
        """
        if stamp[:19] != self._second:
            self._base = nanoseconds(stamp[:19])
            self._second = stamp[:19]
        return self._base + int(stamp[20:29])


def nanoseconds(stamp: bytes) -> int:
    """A time as Docker writes it, with or without its fraction, in nanoseconds since 1970.

    Raises:
        ValueError: it cannot be read.
    """
    second = datetime.fromisoformat(stamp[:19].decode("ascii", "replace")).replace(tzinfo=UTC)
    return int(second.timestamp()) * 1_000_000_000 + int(stamp[20:29] or b"0")
