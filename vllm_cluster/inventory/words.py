"""How values of the file are shown to people: short, printable, and never a secret."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_LONGEST = 60
_HIDDEN = "<hidden>"
_SECRETS = re.compile(
    r"(?:hf_|sk-|gh[opsur]_|github_pat_|glpat-|xox[abp]-|AKIA|nvapi-|eyJ)[\w.\-]{12,}"
    r"|\b[0-9a-fA-F]{32,}\b"
    r"|(?<=:)[^\s/@:]+(?=@)"  # the password of user:password@host
)
_WORD = re.compile(r"[\w+/=\-]{20,}")


def concealed(text: str) -> str:
    """The text with everything that looks like a token or a password taken out."""
    return _WORD.sub(_conceal_if_random, _SECRETS.sub(_HIDDEN, text))


def _conceal_if_random(match: re.Match[str]) -> str:
    word = match.group()
    random = any(c.isupper() for c in word) and any(c.islower() for c in word) and any(c.isdigit() for c in word)
    return _HIDDEN if random else word


def shown(value: object) -> str:
    """A value as a message may quote it."""
    text = printable(concealed(str(value)))
    if len(text) > _LONGEST:
        text = text[: _LONGEST - 1] + "…"
    return f'"{text}"'


def printable(text: str) -> str:
    """The text with its unprintable characters as escapes: nothing in it can steer a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def plain(text: str) -> str:
    """Somebody else's message on one printable line, without secrets."""
    return "".join(c if c.isprintable() else " " for c in concealed(text))


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant."""
    candidates = list(known)
    lowered = {candidate.lower().replace("-", "_"): candidate for candidate in candidates}
    matches = difflib.get_close_matches(word.lower().replace("-", "_"), lowered, n=1, cutoff=0.6)
    return lowered[matches[0]] if matches else None
