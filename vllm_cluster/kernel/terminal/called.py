"""The name that the program is called by: what it prints to be pasted begins with it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

# The second one is the package's, which `uvx` and `pipx run` call.
NAMES = ("vcluster", "vllm-cluster")


class _Called:
    """This call's name, and what of a text is a call of this program."""

    def __init__(self) -> None:
        self.name = NAMES[0]
        self.verbs: Sequence[str] = ()
        self.pattern: re.Pattern[str] | None = None


_CALLED = _Called()


def set_called(program: str, verbs: Iterable[str]) -> str:
    """Take the name from the path by which the program was started; returns it."""
    name = Path(program).name
    _CALLED.name = name if name in NAMES else NAMES[0]
    any_of = "|".join(sorted(verbs))
    _CALLED.pattern = re.compile(rf"(?<![\w./~-]){NAMES[0]}(?= (?:(?:{any_of}|help|VERB)\b|-))")
    return _CALLED.name


def as_called(text: str) -> str:
    """The text, in which each call of the program has the name that works here."""
    if _CALLED.name == NAMES[0] or _CALLED.pattern is None or NAMES[0] not in text:
        return text
    return _CALLED.pattern.sub(_CALLED.name, text)
