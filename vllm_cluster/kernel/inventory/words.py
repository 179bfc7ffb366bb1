"""How values of the file are shown to people: short, printable, and never a secret."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from vllm_cluster.kernel.text import printable, redact_value

_MAX_LENGTH = 60
# No word that is known is half as long, and to compare two takes the product of their lengths.
_MAX_COMPARED = 100


def quote_value(value: object) -> str:
    """A value as a message may quote it."""
    text = printable(redact_value(str(value)))
    if len(text) > _MAX_LENGTH:
        text = text[: _MAX_LENGTH - 1] + "…"
    return f'"{text}"'


def make_printable(text: str) -> str:
    """Another program's message on one printable line, without secrets."""
    return "".join(c if c.isprintable() else " " for c in redact_value(text))


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant; None also where several are equally near.

    One that differs in its numbers alone is another one: gpu3 is not a misspelt gpu2.
    """
    if len(word) > _MAX_COMPARED:
        return None
    given = word.lower().replace("-", "_")
    lowered = {candidate.lower().replace("-", "_"): candidate for candidate in known}
    lowered = {name: one for name, one in lowered.items() if name == given or not _differ_in_numbers(name, given)}
    # Of two letters any word of four may have both: `kind` is not a misspelt `id`.
    lowered = {name: one for name, one in lowered.items() if len(name) > 3 or _ratio(given, name) >= 0.75}
    near = difflib.get_close_matches(given, lowered, n=2, cutoff=0.6)
    tied = len(near) > 1 and _ratio(given, near[0]) == _ratio(given, near[1])
    return lowered[near[0]] if near and not tied else None


def like(word: str, host: str) -> bool:
    """Whether a word may be meant for this host: it is near its name, or differs in its numbers."""
    return _differ_in_numbers(word.lower(), host.lower()) or nearest(word, (host,)) is not None


def _differ_in_numbers(word: str, other: str) -> bool:
    # As text: Python makes no number of more than 4300 digits.
    numbers = [[digits.lstrip("0") for digits in re.findall(r"[0-9]+", one)] for one in (word, other)]
    return re.sub("[0-9]+", "0", word) == re.sub("[0-9]+", "0", other) and numbers[0] != numbers[1]


def _ratio(word: str, other: str) -> float:
    # As get_close_matches compares: the order of the two matters.
    return difflib.SequenceMatcher(None, other, word).ratio()
