"""A row of the catalogue of failures, and the signs by which a log shows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

# A symptom has many causes: its row names where the cause is written, and is never given as one.
FailureKind = Literal["cause", "symptom"]


class SignKind(IntEnum):
    """What a line shows about the failure; the lowest outranks the rest."""

    CAUSE = 0
    # The line states what is wrong and has no sign of its own: every cause that has one outranks it.
    BROAD = 1
    # What the failure of one rank looks like from another, or from outside.
    SYMPTOM = 2
    CONSEQUENCE = 3
    # It works, but not as it should.
    NOTE = 4
    # Looks like a failure and is none, where work goes on after it.
    HARMLESS = 5


@dataclass(frozen=True)
class Sign:
    """Words that a line holds: `needle` literally, and `pattern` where the words alone are ambiguous.

    A note can be why a failure came about that alone looks like another: `explains` are the rows of such failures.
    """

    needle: str
    pattern: str = ""
    weight: SignKind = SignKind.CAUSE
    explains: tuple[str, ...] = ()


def cause(needle: str, pattern: str = "") -> Sign:
    """A line that names the cause."""
    return Sign(needle, pattern)


def broad(needle: str, pattern: str = "") -> Sign:
    """A line whose own words are the cause, on any subject."""
    return Sign(needle, pattern, SignKind.BROAD)


def symptom(needle: str, pattern: str = "") -> Sign:
    """A line that many causes share; only rows of that kind have such signs."""
    return Sign(needle, pattern, SignKind.SYMPTOM)


def after(needle: str, pattern: str = "") -> Sign:
    """A line that only shows that something else has failed."""
    return Sign(needle, pattern, SignKind.CONSEQUENCE)


def note(needle: str, pattern: str = "", explains: tuple[str, ...] = ()) -> Sign:
    """A line that shows something slow or doubtful, not a failure."""
    return Sign(needle, pattern, SignKind.NOTE, explains)


@dataclass(frozen=True)
class KnownFailure:
    """One way to fail. `before` is the command that would have found it; `silent` is the reason why no log shows it.

    `host` rows are about the host or Ray: they can precede the start of vLLM that they make fail.
    Of a symptom, `cause` is what it means and `fix` where its cause is written.
    """

    number: str
    symptom: str
    cause: str
    fix: str
    before: str = ""
    signs: tuple[Sign, ...] = ()
    silent: str = ""
    host: bool = False
    kind: FailureKind = "cause"
