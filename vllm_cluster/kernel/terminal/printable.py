"""Makes text from elsewhere safe to show."""

from __future__ import annotations

import os
import re
import sys
import unicodedata

# Escape sequences, then every control character but newline and tab: remote text never steers the terminal. What has
# no width, marks a direction, ends a line for some programs or is a tag shows another text than the one that is there.
# Half characters (lone surrogates, which JSON can hold) go with them: no output can be encoded with one in it.
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.")
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    r"\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
MAX_LINE = 4000
MAX_TEXT = 1 << 20
_CELLS = {"W": 2, "F": 2}


def plain(text: str, max_line: int = MAX_LINE) -> str:
    """The text without terminal control sequences: `max_line` characters a line, `MAX_TEXT` in all."""
    text = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + " …"
    return "\n".join(line if len(line) <= max_line else line[:max_line] + " …" for line in clean(text).split("\n"))


def clean(text: str) -> str:
    """The text without terminal control sequences, at any length."""
    if text.isprintable() and (text.isascii() or not _CONTROL.search(text)):
        return text
    return _CONTROL.sub("", ESCAPES.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


def cells(text: str) -> int:
    """The columns of a terminal that a text of one line takes."""
    return len(text) if text.isascii() else sum(_CELLS.get(unicodedata.east_asian_width(char), 1) for char in text)


def wants_color(setting: str, *, stdout: bool) -> bool:
    """Whether to colour, by --color, NO_COLOR, FORCE_COLOR and the terminal."""
    if setting != "auto":
        return setting == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    stream = sys.stdout if stdout else sys.stderr
    return stream.isatty() and os.environ.get("TERM") != "dumb"
