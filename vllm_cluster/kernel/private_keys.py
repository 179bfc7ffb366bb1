"""Finds private keys that have no BEGIN, by their lines of base64, in any layout."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

# A line of base64, as a key has them, also in a URL: its BEGIN may be in a part of a log that was not read.
_RUN = re.compile(r"(?<![A-Za-z0-9+/=%])(?<!SHA256:)[A-Za-z0-9+/=%]{30,}+")
# A run within so many characters of the last is of the same key; and of a key are so many runs, or characters.
_NEAR, _RUNS, _LONG = 400, 3, 200
# Of two neighbours in base64 0.64 are not both capitals, small letters or others, in one run at times 0.4; in names of
# C++ and of kernels 0.26 to 0.44.
_TURN = re.compile(r"(?:[A-Z](?![A-Z])|[a-z](?![a-z])|[^A-Za-z](?=[A-Za-z]))(?!$)")
_TURNS_OF_ONE, _TURNS_OF_ALL = 0.36, 0.5
_DIGIT = re.compile(r"\d")
_TAIL = re.compile(r"[A-Za-z0-9+/]{4,}+={0,2}(?![A-Za-z0-9+/=])")


def key_lines(text: str) -> Iterator[tuple[int, int]]:
    """Find the lines of each private key, from where to where, in the order of the text."""
    found = (run for run in _RUN.finditer(text) if looks_random(run[0]) and _turns(run[0]) >= _TURNS_OF_ONE)
    for runs in _near(run.span() for run in found):
        all_of_them = "".join(text[begin:end] for begin, end in runs)
        if (len(runs) >= _RUNS or len(all_of_them) >= _LONG) and _turns(all_of_them) >= _TURNS_OF_ALL:
            yield from runs
            yield from _last(text, runs)


def looks_random(word: str) -> bool:
    """Whether upper case, lower case and digits mix in a word, as they do in keys."""
    return any(c.isupper() for c in word) and any(c.islower() for c in word) and any(c.isdigit() for c in word)


def _near(runs: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    near = list[tuple[int, int]]()
    for run in runs:
        if near and run[0] - near[-1][1] > _NEAR:
            yield near
            near = []
        near.append(run)
    yield from [near] if near else []


def _turns(word: str) -> float:
    """How often its kind of letter changes, a character."""
    return sum(1 for _ in _TURN.finditer(word, 0, 4 * _NEAR)) / min(len(word), 4 * _NEAR)


def _last(text: str, runs: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The short last line of a key, behind what divides the lines before it; times differ there."""
    if len(runs) > 1:
        (_, before), (after, end) = runs[-2:]
        between = _DIGIT.sub("0", text[before:after])
        word = _TAIL.match(text, end + len(between))
        if (
            word
            and _DIGIT.sub("0", text[end : word.start()]) == between
            and (word[0][-1] == "=" or looks_random(word[0]))
        ):
            yield word.span()
