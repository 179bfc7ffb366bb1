"""The options that every verb takes, as this call has them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Known:
    """The options of the verb that is called, as its parser reads them.

    `same` are all names of the option with a name, `valued` the names of those with a value, and `bare` of those that
    may be typed without it too.
    """

    same: Mapping[str, Sequence[str]] = field(default_factory=dict)
    valued: Container[str] = ()
    bare: Container[str] = ()


class Settings:
    """The options before the verb, its name, and what its own options are."""

    verbosity: int = 0
    color: str = "auto"
    verb: str = ""
    known: Known = Known()


# The root command fills it before any verb runs; verbs only read it.
SETTINGS = Settings()
