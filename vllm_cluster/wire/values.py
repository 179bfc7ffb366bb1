"""Types of single values that another machine sent: each is bounded, and a value outside of it is refused."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sized
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from vllm_cluster.wire.labels import LABELS

N = TypeVar("N", int, float)
T = TypeVar("T")
S = TypeVar("S", bound=Sized)

LOOPBACK = "127.0.0.1"
# The largest file that anybody serves from, in bytes.
MAX_SIZE = 10 * 1000**4
MAX_NAME, MAX_TEXT, MAX_WORD, MAX_LONG = 4096, 64 << 10, 128 << 10, 4 << 20
_NO_WORD = re.compile("[\0\ud800-\udfff]")
_LOGIN = re.compile(r"://[^/\s]*@")
# An image may be next:1.
_LABELLED = re.compile(rf"(?im)^([^\S\n]*)({'|'.join(LABELS)})(?=[^\S\n]*:(?:\s|\Z))")
# Harmless in a text of several lines, though Python does not call them printable.
_PLAIN_SPACE = "\n\t\N{NO-BREAK SPACE}"


def between(least: N, most: N) -> Callable[[N], N]:
    """A check for a number from `least` to `most`."""

    def check(number: N) -> N:
        if not least <= number <= most:
            raise ValueError(f"must be from {least} to {most}")
        return number

    return check


def at_most(most: int) -> Callable[[S], S]:
    """A check for a list or an object of so many values or fewer."""

    def check(values: S) -> S:
        if len(values) > most:
            raise ValueError(f"has more than {most} entries")
        return values

    return check


def shaped(pattern: str, what: str) -> Callable[[str], str]:
    """A check for text that an expression matches whole; `what` it would be then is for people."""
    shape = re.compile(pattern)

    def check(text: str) -> str:
        if not shape.fullmatch(text):
            raise ValueError(f"is not {what}")
        return text

    return check


def _long(text: str) -> str:
    if len(text) > MAX_LONG:
        raise ValueError(f"has more than {MAX_LONG} characters")
    return text


def _name(text: str) -> str:
    if not 0 < len(text) <= MAX_NAME:
        raise ValueError(f"must have from 1 to {MAX_NAME} characters")
    # Control characters, bidi marks, zero widths, tags, lone surrogates.
    if not text.isprintable():
        raise ValueError("has a character that cannot be printed")
    # As a word of a command it would be an option: one of vcluster may lead to a file that names a program to run.
    if text.startswith("-"):
        raise ValueError("begins with -")
    return unlike_remedy(text)


def unlike_remedy(text: str) -> str:
    """Check that text, which is used as it is, does not begin as a line that people paste.

    Raises:
        ValueError: it does.
    """
    if _LABELLED.match(text):
        raise ValueError("begins as a line to paste does")
    return text


def served_name(text: str) -> str:
    """Check the name of a model: it begins lines that people read, and must not be a remedy or a command in them.

    Raises:
        ValueError: it has a blank, or a sign that shells know, or begins as an option does.
    """
    if not all(char.isalnum() or char in "._-/:@+=,~%" for char in _name(text)):
        raise ValueError("has a blank, or a sign that no model's name has")
    return text


def _word(text: str) -> str:
    # The kernel takes no longer word of a command, and none with a NUL; a lone surrogate is a byte that is not UTF-8.
    if _NO_WORD.search(text) or len(text.encode()) >= MAX_WORD:
        raise ValueError(f"cannot be a word of a command: it has a NUL, is not UTF-8, or has {MAX_WORD} bytes or more")
    return text


def _address(text: str) -> str:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        # Without the text itself.
        raise ValueError("is not an IP address") from None
    # The zone of an address may be any text.
    if getattr(found, "scope_id", None):
        raise ValueError("is an address with a zone")
    return text


def quoted_labels(text: str) -> str:
    """Text in which each line that begins as one to paste does has that beginning in quotes."""
    return _LABELLED.sub(r'\1"\2"', text)


def words(text: str) -> str:
    """Text as it may be shown: what steers a terminal, or is not to be seen, is replaced, a long one cut.

    Not refused: a line of vLLM's log may have any length, and the status that holds it must be read.
    """
    return quoted_labels(_visible(text))


def _visible(text: str) -> str:
    if len(text) > MAX_TEXT:
        text = text[: MAX_TEXT - 1] + "…"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _PLAIN_SPACE else "\N{REPLACEMENT CHARACTER}" for c in text)


def one_line(text: str) -> str:
    """The same on one line: on a line of its own it could look like a remedy."""
    return quoted_labels(" ".join(_visible(text).split()))


def brief(most: int) -> Callable[[str], str]:
    """A check that cuts text to so many characters, as it goes from host to host and is kept there."""
    return lambda text: text if len(text) <= most else f"{text[: most - 1]}…"


@dataclass(frozen=True)
class First:
    """A check that keeps so many values of a list, the first ones; `read` does so before it takes time for the rest."""

    most: int

    def __call__(self, values: tuple[T, ...]) -> tuple[T, ...]:
        """Return these of a list."""
        return values[: self.most]


def first(most: int) -> First:
    """A check that keeps so many values of a list, the first ones."""
    return First(most)


def inside(path: str) -> str:
    """A path that stays below the folder that it is joined to, on one line, and is not an option by itself."""
    parts = path.split("/")
    if len(path) > MAX_NAME or {"", ".", ".."} & {*parts} or not path.isprintable() or path.startswith("-"):
        raise ValueError("is not a path below a folder")
    return unlike_remedy(path)


def without_logins(text: str) -> str:
    """Text as it may be shown: the URLs in it without a login."""
    return _LOGIN.sub("://", text)


@dataclass(frozen=True)
class Url:
    """An address of a hub, shown without the login that may be in it; `whole` is the one to ask."""

    whole: str = field(repr=False)

    def __str__(self) -> str:
        return without_logins(self.whole)


# These become a URL, words of commands and rows of tables on a person's machine; a host may write anything.
Name = Annotated[str, _name]
# What runs, by the hash of what was asked for, and which run of a verb it was.
RunName = Annotated[str, shaped("[0-9A-Za-z-]{0,64}", "the name of a run")]
# What clients ask for as `model`, and the model itself.
ServedName = Annotated[str, served_name]
Word = Annotated[str, _word]
# A document in a document: it is read by itself.
Long = Annotated[str, _long]
# What is shown in a row, or within a sentence.
Line = Annotated[str, one_line]
# What a person reads of an error elsewhere.
Shown = Annotated[str, words, without_logins]
Address = Annotated[str, _address]
Port = Annotated[int, between(1, 65535)]
Size = Annotated[int, between(0, MAX_SIZE)]
Count = Annotated[int, between(0, 1 << 53)]
# No number of a document is NaN or Infinity, which are numbers to Python's JSON alone.
Number = float
Positive = Annotated[float, between(0.0, 1e18)]
# Of a hub, as a person may paste it; a login in it is not shown.
HubUrl = Annotated[
    str,
    shaped(
        r"https?://(?:[^/\s]{1,400}@)?[A-Za-z0-9._:\[\]-]{1,300}(?:/[A-Za-z0-9._~%/-]{0,400})?", "the address of a hub"
    ),
]
Sha256 = Annotated[str, shaped("[0-9a-f]{64}", "a sha256 of 64 hex digits")]
RelativePath = Annotated[str, inside]
