"""Words of a shell: what they are made of, and where they are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from vllm_cluster.kernel.text import printable

# Of a word in a message or a table: a configuration in JSON is long.
MAX_SHOWN = 120


@dataclass(frozen=True)
class ShellWord:
    """A word and its line; `missing` are the variables and commands in it whose value is not in the text."""

    text: str
    line: int
    missing: tuple[str, ...] = ()


# The variables around a command, the nearest last: shared by the commands, or each would have a copy of all.
Layers = tuple[Mapping[str, ShellWord], ...]


@dataclass
class WordPart:
    """A piece of a word: quoted or not; `split` where it came of a variable, whose blanks separate words."""

    text: str
    missing: tuple[str, ...] = ()
    split: bool = False
    words: tuple[ShellWord, ...] | None = None


def joined(parts: Sequence[WordPart], line: int) -> Iterator[ShellWord]:
    """The words of pieces: one, but where a variable holds several, or none."""
    text, begun = "", False
    missing: list[str] = []
    for part in parts:
        if part.words is not None:
            yield from ([ShellWord(text, line, tuple(missing))] if text else [])
            yield from (replace(word, line=line) for word in part.words)
            text, missing, begun = "", [], False
            continue
        pieces = re.split(r"[ \t\n]+", part.text) if part.split else [part.text]
        missing += part.missing
        begun = begun or bool(part.missing) or not part.split or bool(part.text.strip())
        text += pieces[0]
        for piece in pieces[1:]:
            if text or missing:
                yield ShellWord(text, line, tuple(missing))
            text, missing, begun = piece, [], bool(piece)
    if begun:
        yield ShellWord(text, line, tuple(missing))


def shown(word: ShellWord) -> str:
    """A word for a message: with the names of what it lacks."""
    return cut(printable(word.text + "".join(word.missing)))


def cut(text: str) -> str:
    """The beginning of a text, for a message or a table."""
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
