"""A failure of the catalogue, and the signs by which a log shows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

# A symptom has many causes: its entry names where the cause is written, and is never given as one.
FailureKind = Literal["cause", "symptom"]


class SignKind(IntEnum):
    """What a line shows about the failure; the lowest outranks the rest."""

    CAUSE = 0
    # The line states what is wrong and has no sign of its own: every cause that has one outranks it.
    BROAD = 1
    # Names which host or process was lost, and not why; other symptoms follow from that.
    DECISIVE = 2
    # What the failure of one rank looks like from another, or from outside.
    SYMPTOM = 3
    CONSEQUENCE = 4
    # It works, but not as it should.
    NOTE = 5
    # Looks like a failure and is none, where work continues after it.
    HARMLESS = 6
    # Contradicts a failure.
    FACT = 7


@dataclass(frozen=True)
class Sign:
    """Words that a line holds: `needle` literally, and `pattern` where the words alone are ambiguous.

    A note can be why a failure came about that alone looks like another: `explains` are the slugs of such failures.
    Where the logs hold one of the facts `unless`, or none of `only`, the sign shows the symptom `instead`.
    `who` is a pattern of the process that writes it. `code`: it is source code, which a traceback quotes.
    Without an `instead` such a sign shows nothing, nor does one with a fact of `until` shortly below it.
    """

    needle: str
    pattern: str
    kind: SignKind
    explains: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    instead: str = ""
    who: str = ""
    until: tuple[str, ...] = ()
    code: bool = False


@dataclass(frozen=True)
class KnownFailure:
    """One way to fail.

    `found_by` is the command that would have found it, `checks` are the codes of its findings;
    `prevented` is what else keeps it from happening, `silent` why no log shows it.

    A failure of the `host` or of Ray can precede the start of vLLM that it makes fail.
    A symptom `follows` where it is what the failure of one process looks like from another.
    `job` is what to do in a job of Slurm, where that is not what `fix` has for a cluster.
    Of a symptom, `cause` is what it means and `fix` where its cause is written. Each line of a `fix` is a remedy.
    """

    slug: str
    subject: str
    symptom: str
    cause: str
    fix: str
    job: str = ""
    found_by: str = ""
    checks: tuple[str, ...] = ()
    prevented: str = ""
    silent: str = ""
    host: bool = False
    kind: FailureKind = "cause"
    follows: bool = False
    signs: tuple[Sign, ...] = ()
    number: int | str | None = None
