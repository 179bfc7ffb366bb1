"""How values of the file are shown to people: short, printable, and never a secret."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from vllm_cluster.text import printable, redact_value

_MAX_LENGTH = 60


def shown(value: object) -> str:
    """A value as a message may quote it."""
    text = printable(redact_value(str(value)))
    if len(text) > _MAX_LENGTH:
        text = text[: _MAX_LENGTH - 1] + "…"
    return f'"{text}"'


def plain(text: str) -> str:
    """Another program's message on one printable line, without secrets."""
    return "".join(c if c.isprintable() else " " for c in redact_value(text))


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant."""
    candidates = list(known)
    lowered = {candidate.lower().replace("-", "_"): candidate for candidate in candidates}
    matches = difflib.get_close_matches(word.lower().replace("-", "_"), lowered, n=1, cutoff=0.6)
    return lowered[matches[0]] if matches else None
