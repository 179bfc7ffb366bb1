"""The options that every verb takes, as this call has them."""

from __future__ import annotations


class Settings:
    """The options before the verb, and its name."""

    verbosity: int = 0
    color: str = "auto"
    verb: str = ""


# The root command fills it before any verb runs; verbs only read it.
SETTINGS = Settings()
