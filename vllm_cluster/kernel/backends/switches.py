"""Switches of vLLM as earlier releases took them, and as the parser of today does."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

# A switch with a value, as releases before 0.7 took it. Of another option `true` may be the value that is meant.
_OLD_SWITCH = re.compile(r"--(enable[-_][a-z0-9_-]+)[= ](true|false)", re.IGNORECASE)


def spelled_today(words: Sequence[str]) -> list[str]:
    """An option and its values as vLLM's parser takes them: a switch that once had a value is --NAME or --no-NAME.

    >>> spelled_today(["--enable-chunked-prefill=False"]), spelled_today(["--seed", "1"])
    (['--no-enable-chunked-prefill'], ['--seed', '1'])
    """
    found = _OLD_SWITCH.fullmatch(" ".join(words))
    return [f"--{'' if found[2].lower() == 'true' else 'no-'}{found[1]}"] if found else list(words)


def old_spellings(words: Sequence[str]) -> dict[str, str]:
    """The switches with a value among flags, each as vLLM writes it today."""
    pairs = [*([word] for word in words), *map(list, itertools.pairwise(words))]
    return {" ".join(pair): today[0] for pair in pairs if (today := spelled_today(pair)) != pair}
