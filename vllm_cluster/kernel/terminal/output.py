"""The one place that writes on standard output and standard error: no text from elsewhere steers a terminal."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TextIO

from vllm_cluster.kernel.shell_line import Pasted, unbroken
from vllm_cluster.kernel.terminal.called import as_called
from vllm_cluster.kernel.terminal.labels import unlabelled
from vllm_cluster.kernel.terminal.printable import ESCAPES, MAX_LINE, cells, clean, wants_color

if TYPE_CHECKING:
    from rich.console import Console, OverflowMethod
    from rich.text import Text


class Style(str):
    """A colour, an end of a line, or a line to paste, of our own: written as it is."""


RED, YELLOW, BOLD, DIM = Style("\x1b[31m"), Style("\x1b[33m"), Style("\x1b[1m"), Style("\x1b[2m")
PLAIN, END, _NONE = Style("\x1b[0m"), Style("\n"), Style()
# A line begins only where our own code ends one: what a text from elsewhere has on its second line is behind a mark.
MARK = "  | "
# Below it nothing is folded, in columns.
MIN_WIDTH = 20


def styles(color: str, *wanted: Style, stdout: bool = True) -> tuple[Style, ...]:
    """Return these styles and their end; nothing for each where the output has no colours."""
    return (*wanted, PLAIN) if wants_color(color, stdout=stdout) else (_NONE,) * (len(wanted) + 1)


def out(*parts: str, end: str = "\n") -> None:
    """Write on standard output, at once; what is longer than the terminal continues behind a mark."""
    _write(sys.stdout, parts, end)


def err(*parts: str, end: str = "\n") -> None:
    """Write on standard error, at once; what is longer than the terminal continues behind a mark."""
    _write(sys.stderr, parts, end)


def _write(stream: TextIO, parts: Iterable[str], end: str) -> None:
    if stream.isatty():
        before, width, shown = 0, _width(stream), list[str]()
        for part in parts:
            shown.append(part if isinstance(part, Style) else folded(part, width, before))
            before = 0 if part == END else before + cells(ESCAPES.sub("", part))
        parts = shown
    stream.write("".join(map(_safe, parts)) + end)
    stream.flush()


def with_ends(lines: Iterable[str]) -> Iterator[str]:
    """Return these lines as parts to write, each with its end, for `end=""`."""
    return (part for line in lines for part in (line, END))


def folded(text: str, width: int, before: int = 0) -> str:
    """The text in lines that fit the terminal: what a terminal breaks itself begins its line with anything.

    `before` is what its first line has before it.
    """
    first, *more = unlabelled(clean(text)).expandtabs().split("\n")
    pieces = [_pieces(first, width, before), *(_pieces(line, width, len(MARK)) for line in more)]
    return "\n".join(piece for of_line in pieces for piece in of_line)


def _width(stream: TextIO) -> int:
    # The other stream may be a pipe, for which any width is given.
    try:
        return os.get_terminal_size(stream.fileno()).columns or shutil.get_terminal_size().columns
    except (OSError, ValueError):
        return shutil.get_terminal_size().columns


def _pieces(line: str, width: int, before: int) -> Iterator[str]:
    begin = blank = taken = 0
    room = width - before if width >= MIN_WIDTH else 2 * MAX_LINE
    if line.isascii() and len(line) <= room:
        yield line
        return
    for at, char in enumerate(line):
        taken += cells(char)
        while taken > room and at > begin:
            end = blank if blank > begin else at
            yield line[begin:end]
            begin, room, taken = end, width - len(MARK), cells(line[end : at + 1])
        blank = at + 1 if char == " " else blank
    yield line[begin:]


def to_paste(label: str, text: Pasted, cleaned: Callable[[str], str] = clean) -> Style:
    """Return a line of our own behind its label, as `fix: `: it stays one line, to be pasted."""
    return Style(label + as_called(unbroken(cleaned(text))).replace("\n", f"\n{MARK}"))


def data(text: str, *, of_errors: bool = False) -> None:
    """Write what a model or a command gave: as it is into a file or to a program, as text on a terminal."""
    stream = sys.stderr if of_errors else sys.stdout
    stream.write(clean(text) if of_errors or stream.isatty() else text)
    stream.flush()


def document(value: object, *, indent: int | None = None) -> None:
    """Write a JSON document on a line; its escapes keep every character that is not ASCII."""
    sys.stdout.write(as_called(json.dumps(value, indent=indent, default=str)) + "\n")
    sys.stdout.flush()


# A value as JSON on one line, by one encoder.
encoded = json.JSONEncoder().encode


def documents(values: Iterable[str]) -> None:
    """Write JSON documents, each on a line, at once: thousands a second."""
    sys.stdout.write("".join([f"{value}\n" for value in values]))
    sys.stdout.flush()


def _safe(part: str) -> str:
    return part if isinstance(part, Style) else as_called(unlabelled(clean(part))).replace("\n", f"\n{MARK}")


def raw(given: bytes, *, of_errors: bool) -> None:
    """Write what a command that the user runs on a host printed, byte for byte, as ssh does."""
    stream = sys.stderr if of_errors else sys.stdout
    stream.buffer.write(given)
    stream.buffer.flush()


def console(*, stderr: bool, colored: bool = True) -> Console:
    """Return where live pictures are drawn."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, no_color=not colored)


def styled(*parts: str | tuple[str, str], no_wrap: bool | None = None, overflow: OverflowMethod | None = None) -> Text:
    """Return a text of a picture, whose parts may have a style."""
    from rich.text import Text

    safe = ((_safe(part[0]), part[1]) if isinstance(part, tuple) else _safe(part) for part in parts)
    return Text.assemble(*safe, no_wrap=no_wrap, overflow=overflow)
