"""Lines for a person's shell, composed of words: what is in a word can never be more than a word."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Not all that shlex leaves as it is: zsh takes =NAME for a program, and fish %self for its own number.
_PLAIN = re.compile(r"[A-Za-z0-9_@+:,./-]+|--?[A-Za-z0-9_@+:,./=-]+")


@dataclass(frozen=True)
class Filled:
    """A word whose end the shell fills in: with what a command prints."""

    begin: str
    command: Sequence[str]


def shell_line(words: Iterable[str | Filled]) -> str:
    """The command line of these words, for sh, bash, zsh and fish.

    >>> shell_line(["curl", "-d", "it's", Filled("key: ", ["vcluster", "endpoint"])])
    'curl -d \\'it\\'"\\'"\\'s\\' \\'key: \\'"$(vcluster endpoint)"'
    """
    return " ".join(_filled(word) if isinstance(word, Filled) else _quoted(word) for word in words)


def export_line(name: str, value: str) -> str:
    """The line that gives a variable to a shell's programs."""
    return f"export {name}={_quoted(value)}"


def _filled(word: Filled) -> str:
    return f'{_quoted(word.begin)}"$({shell_line(word.command)})"'


def _quoted(word: str) -> str:
    if _PLAIN.fullmatch(word):
        return word
    # A backslash is outside of the quotes: within them it is a character to sh, bash and zsh, and to fish escapes
    # the quote behind it.
    single = word.replace("'", """'"'"'""").replace("\\", """'\\\\'""")
    return f"'{single}'"
