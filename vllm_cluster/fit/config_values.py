"""Validated numbers from untrusted config files, and sizes as users write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MAX_LAYERS = 4096
_MAX_VALUE = 1 << 48
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_BINARY = {"KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30, "TI": 1 << 40}


def optional(config: Mapping[str, Any], *names: str) -> int:
    """The first of the keys that is set, 0 where none is; of a list (one a layer) the largest.

    Raises:
        ValueError: the value is not an integer that a model can have.
    """
    for name in names:
        value = config.get(name)
        if isinstance(value, list):
            value = max((entry for entry in value if isinstance(entry, int)), default=None)
        if value is None or value is False or value == 0:
            continue
        if not isinstance(value, int) or value is True or not 0 < value < _MAX_VALUE:
            # GPTQ and others write -1 for "none".
            if value == -1:
                continue
            raise ValueError(f"{name} is {str(value)[:40]!r}")
        return value
    return 0


def number(config: Mapping[str, Any], *names: str) -> int:
    """As `optional`, where one of them must be set.

    Raises:
        ValueError: none is.
    """
    found = optional(config, *names)
    if not found:
        raise ValueError(f"it has no {names[0]}")
    return found


def flag(config: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """Whether a key is true."""
    value = config.get(name)
    return default if value is None else value is True


def size(text: str) -> int:
    """`405B` or `80GB` as a number, `79.6GiB` too.

    Raises:
        ValueError: it is none.
    """
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)\s*([KMGTB]?)(I?)B?", text.strip().upper(), re.ASCII)
    if not match or (match[3] and match[2] in ("", "B")):
        raise ValueError(f"invalid size {text!r}: write a number and a unit")
    found = float(match[1]) * (_BINARY[match[2] + "I"] if match[3] else _UNITS[match[2]])
    if not 1 <= found < _MAX_VALUE:
        raise ValueError(f"size {text!r} is out of range")
    return round(found)
