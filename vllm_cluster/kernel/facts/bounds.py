"""Bounds what the facts of a host may hold: what its script printed may be anything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import TypeVar

from vllm_cluster.wire.values import words

T = TypeVar("T")

# The longest path that the kernel takes; the largest of file systems.
MAX_TEXT, MAX_NUMBER = 4096, 1 << 63
# Rows of one kind: a host with 250 pods has as many interfaces, and listens on some hundred ports.
MAX_ROWS = 8192
# What a driver, an adapter or a daemon calls itself may become a part of a remedy: no shell gives its characters a
# meaning, not even the history of one at a prompt, and none is a whole remedy. Paths and names of people's own are
# quoted where they are words of a command.
_PLAIN = ("nics.", "hcas.", "gids.", "gpus.", "docker.", "details.", "machine_id", "architecture", "boot_id")
_FREE = frozenset({"docker.data_root", "docker.problem", "docker.missing_cdi_paths", "gpus.processes.name"})
_FREE_DETAILS = (
    "incomplete_files",
    "broken_symlinks",
    "without_tokenizer",
    "filesystems",
    "revisions",
    "xids",
    "image.entrypoint",
)
_OF_SHELLS = str.maketrans({"(": "[", ")": "]", **dict.fromkeys(";|&$`<>'\"\\\n!^", "\N{REPLACEMENT CHARACTER}")})
# All that Python divides lines and words at.
_ENDS = "\n \t\r\v\f\x1c\x1d\x1e\x85\N{NO-BREAK SPACE}\N{LINE SEPARATOR}\N{PARAGRAPH SEPARATOR}\N{IDEOGRAPHIC SPACE}"


def ensure_few(field: str, number: int) -> None:
    """Refuse more rows of one kind than there may be.

    Raises:
        ValueError: there are more.
    """
    _ensure(number <= MAX_ROWS, field, f"have at most {MAX_ROWS} entries")


def ensure_few_rows(name: str, section: str) -> None:
    """Refuse a section of more lines or words than there may be rows of one kind.

    Raises:
        ValueError: it has more.
    """
    _ensure(sum(map(section.count, _ENDS)) <= MAX_ROWS, name, f"have at most {MAX_ROWS} lines and words")


def bounded(facts: T) -> T:
    """These facts, with their texts as they may be shown.

    Raises:
        ValueError: one is outside its limit; names the field and the limit.
    """
    found = _bounded(facts, "")
    assert isinstance(found, type(facts))  # noqa: S101 - it is replaced by its own kind
    return found


def _bounded(value: object, field: str) -> object:
    if isinstance(value, str):
        _ensure(len(value) <= MAX_TEXT, field, f"have at most {MAX_TEXT} characters")
        return words(value).translate(_OF_SHELLS) if _is_plain(field) else words(value)
    if isinstance(value, int | float):
        # False of NaN as well.
        _ensure(math.isfinite(value) and 0 <= value <= MAX_NUMBER, field, f"be from 0 to {MAX_NUMBER}")
        return value
    if is_dataclass(value) and not isinstance(value, type):
        own = ((one.name, f"{field}.{one.name}".lstrip(".")) for one in fields(value))
        return replace(value, **{name: _bounded(getattr(value, name), place) for name, place in own})
    if isinstance(value, Mapping | tuple | frozenset):
        ensure_few(field, len(value))
        if isinstance(value, Mapping):
            return {_bounded(key, field): _bounded(entry, field) for key, entry in value.items()}
        return type(value)(_bounded(entry, field) for entry in value)
    return value


def _is_plain(field: str) -> bool:
    free = field in _FREE or field.removeprefix("details.").startswith(_FREE_DETAILS)
    return field.startswith(_PLAIN) and not free


def _ensure(holds: bool, field: str, limit: str) -> None:
    if not holds:
        raise ValueError(f"{field} must {limit}")
