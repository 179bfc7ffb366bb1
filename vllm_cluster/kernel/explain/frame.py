"""Where an exception was raised: the last frame of its traceback, and how tracebacks are chained."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vllm_cluster.kernel.explain.log_line import MAX_LINE, parse_line

MAX_ABOVE = 4096
MAX_FRAMES = 32  # frames of other processes that are passed over, where several write side by side
SHOWN = 400  # bytes below a line that may continue it
_FRAME = re.compile(r'File "([^"]{1,300})", line (\d{1,7})(?:, in ([\w.<>]{1,120}))?')
_INSTALLED = re.compile(r"^.*/(?:site|dist)-packages/")
# Of Triton and Dynamo only the module shows that it is one: triton.runtime.errors.OutOfResources.
_EXCEPTION = re.compile(
    r"(?:[A-Za-z_][\w.]{0,120}(?:Error|Exception|Exit|Interrupt|Expired)|(?:\w{1,40}\.){1,8}(?:errors|exc|exceptions)\.\w+)"
    r"(?:: |:?$)"
)
# What follows replaces what is above: it is how the process ended.
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


@dataclass(frozen=True)
class Frame:
    """A line of source code, its path as it is installed."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Nearby:
    """A line of a piece of a log, with what is above and below it."""

    part: bytes
    start: int
    end: int

    @property
    def text(self) -> bytes:
        """The line itself, as far as it counts."""
        return self.part[self.start : min(self.end, self.start + MAX_LINE)]

    @property
    def below(self) -> bytes:
        """What may continue the line."""
        return self.part[self.end + 1 : self.end + 1 + SHOWN]

    def frame(self, who: str, names: frozenset[str]) -> Frame | None:
        """The nearest frame above that the same process has written."""
        at, least = self.start, max(0, self.start - MAX_ABOVE)
        for _ in range(MAX_FRAMES):
            at = self.part.rfind(b'File "', least, at)
            if at < 0:
                return None
            begin = self.part.rfind(b"\n", 0, at) + 1
            parsed = parse_line(self.part[begin : begin + MAX_LINE].split(b"\n", 1)[0], names=names)
            found = _FRAME.match(parsed.words.lstrip())
            if found and parsed.who == who:
                return Frame(_INSTALLED.sub("", found[1]), int(found[2]), found[3] or "")
        return None


def is_exception(words: str) -> bool:
    """Whether a line is the last of a traceback: the exception and its message."""
    return bool(_EXCEPTION.match(words))


def is_chained(words: str) -> bool:
    """Whether the next exception of this process came of the one above."""
    return words.startswith(_CHAINED)
