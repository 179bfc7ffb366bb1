"""What a container or a command in one printed, as the Engine API frames it."""

from __future__ import annotations

HEADER = 8
STDERR = 2
# Docker writes at most 32 kB at once.
MAX_FRAME = 1 << 20
MAX_ERRORS = 4000


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
            size = int.from_bytes(data[at + 4 : at + HEADER], "big")
            if size > MAX_FRAME:
                raise ValueError(f"a frame of {size} bytes")
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
