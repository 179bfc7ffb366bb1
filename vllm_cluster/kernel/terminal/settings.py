"""The options that every verb takes, as this call has them."""

from __future__ import annotations

from collections.abc import Sequence


class Settings:
    """The options before the verb, its name, and the names that each of its own options has."""

    verbosity: int = 0
    color: str = "auto"
    verb: str = ""
    names: Sequence[Sequence[str]] = ()


# The root command fills it before any verb runs; verbs only read it.
SETTINGS = Settings()
