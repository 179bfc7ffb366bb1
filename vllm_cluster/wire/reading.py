"""Reads what another machine sent into frozen dataclasses; a document of another shape is refused, with its sender.

Keys that a later version may have added are passed over. Everything else is strict: no number for a text, no text for
a number, no value outside of its type.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Annotated, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from vllm_cluster.wire.values import First, words

T = TypeVar("T")
Convert = Callable[[object, str], object]

# Python takes four bytes for each of a document's characters where one of them is rare, and that twice, and 56 for an
# empty list: 4 MiB of `[],` would take 110 MB.
MAX_BYTES, MAX_VALUES = 3 << 20, 200_000
# Of a number whose type has no limit: a larger one fits into no integer of C, and cannot be divided by 1e9.
MAX_NUMBER = 1 << 63
# The largest double has 309.
MAX_DIGITS = 308
# From its begin: a search from each digit would take the square.
_LONG_NUMBER = re.compile(rb"(?<!\d)\d{%d}" % (MAX_DIGITS + 1))
# In the metadata of a field: its key, where that is not its name, and the key of an earlier version.
KEY, ALSO = "key", "also"


class RefusedDocument(ValueError):
    """What `sender` sent is refused: `field` is where in it, empty for the whole, `why` is for people."""

    def __init__(self, sender: str, field: str, why: str) -> None:
        super().__init__(f"{sender}: {field} {why}" if field else f"{sender}: {why}")
        self.sender, self.field, self.why = sender, field, why


class _Wrong(ValueError):
    def __init__(self, field: str, why: str) -> None:
        super().__init__(why)
        self.field, self.why = field, why


def read(kind: type[T], raw: bytes, sender: str, most: int = MAX_BYTES) -> T:
    """Read a JSON document of at most so many bytes as this dataclass.

    Raises:
        RefusedDocument: it is larger, not JSON, or of another shape.
    """
    return convert(kind, document(raw, sender, most), sender)


def document(raw: bytes, sender: str, most: int = MAX_BYTES, values: int = MAX_VALUES) -> object:
    """Read JSON of at most so many bytes and values; NaN and Infinity are not JSON.

    Raises:
        RefusedDocument: it is larger, or not JSON.
    """
    if len(raw) > most:
        raise RefusedDocument(sender, "", f"is larger than {most} bytes")
    try:
        return json.loads(bounded(raw, most, values), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        # Without what was found there, which may be of any length.
        raise RefusedDocument(sender, "", "is not a JSON document") from None


def json_for_all(raw: bytes) -> object:
    """Parse JSON that every other reader takes, too, once it is written again.

    Raises:
        ValueError, RecursionError: it is not JSON; a number is none, or larger than a double; half a letter of UTF-16.
    """
    # A call for each number takes three times as long; a text may have as many digits.
    integer = _integer if _LONG_NUMBER.search(raw) else int
    # Of bytes Python would take UTF-16, too.
    found = json.loads(raw.decode(), parse_constant=_no_constant, parse_int=integer)
    # 1e999 is infinite to Python's JSON, and half a letter has no form in UTF-8.
    json.dumps(found, allow_nan=False, ensure_ascii=False).encode()
    return found


def bounded(raw: bytes, most: int = MAX_BYTES, values: int = MAX_VALUES) -> bytes:
    """Return JSON as it is, where what becomes of it takes little memory: all that is parsed and is not our own.

    Raises:
        ValueError: it has more than so many bytes or values; the commas of its texts count too.
    """
    if len(raw) > most or sum(map(raw.count, (b",", b"[", b"{"))) > values:
        raise ValueError(f"has more than {most} bytes, or {values} values")
    return raw


def convert(kind: type[T], value: object, sender: str) -> T:
    """Take parsed JSON as this dataclass.

    Raises:
        RefusedDocument: it has another shape.
    """
    wanted: object = kind
    try:
        found = _converter(wanted)(value, "")
    except _Wrong as wrong:
        raise RefusedDocument(sender, wrong.field, wrong.why) from None
    assert isinstance(found, kind)  # noqa: S101  # a converter makes what it is named after
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError("is larger than numbers of JSON are")
    return int(digits)


@cache
def _converter(kind: object) -> Convert:
    """How a value becomes one of this type.

    Raises:
        TypeError: a document has no such type.
    """
    if isinstance(kind, type) and is_dataclass(kind):
        return _of_dataclass(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        # A check of its own comes before the limit of all numbers: its words name the limit of this one. Text with one
        # is not cleaned at all: what a name may not have is refused.
        base, checks = arguments[0], arguments[1:]
        if base in _PLAIN:
            return _checked(_plain(base, *_PLAIN[base]), (*checks, *([] if base is str else [_LIMITS[base]])))
        return _checked(_converter(base), checks)
    if origin is Literal:
        return _one_of(arguments)
    if origin in (Union, types.UnionType):
        others = [one for one in arguments if one is not type(None)]
        if len(others) == 1:
            return _or_none(_converter(others[0]))
    if origin is tuple:
        return _list(arguments[0]) if arguments[1:] == (...,) else _row(arguments)
    if origin in (dict, Mapping):
        return _mapping(*arguments)
    if kind is object:
        # A document of another program, such as a model's config: who uses a value of it checks that one.
        return lambda value, _field: value
    if isinstance(kind, type) and kind in _PLAIN:
        return _checked(_plain(kind, *_PLAIN[kind]), (_LIMITS[kind],))
    raise TypeError(f"no document has a {kind}")


# What JSON has for each type, and what that is for people. Where its type has no limit, a text or a number has one.
_PLAIN: Mapping[type, tuple[tuple[type, ...], str]] = {
    str: ((str,), "text"),
    int: ((int,), "an integer"),
    float: ((int, float), "a number"),
    bool: ((bool,), "true or false"),
}


def _number(value: object) -> object:
    # 1e999 is infinite to Python's JSON.
    if isinstance(value, int | float) and not -MAX_NUMBER <= value < MAX_NUMBER:
        raise ValueError(_TOO_LARGE)
    return value


def _text(value: object) -> object:
    return words(str(value))


_TOO_LARGE = "must be a number of at most 64 bits"
_LIMITS: Mapping[type, Callable[[object], object]] = {str: _text, int: _number, float: _number, bool: _number}


def _plain(kind: Callable[[object], object], taken: tuple[type, ...], what: str) -> Convert:
    def take(value: object, field: str) -> object:
        if type(value) not in taken:
            raise _Wrong(field, f"must be {what}")
        try:
            return kind(value)
        except OverflowError:
            raise _Wrong(field, _TOO_LARGE) from None

    return take


def _checked(inner: Convert, checks: tuple[Callable[[object], object], ...]) -> Convert:
    most = min((check.most for check in checks if isinstance(check, First)), default=None)

    def take(value: object, field: str) -> object:
        found = inner(value[:most] if most is not None and isinstance(value, list) else value, field)
        for check in checks:
            try:
                found = check(found)
            except ValueError as error:
                raise _Wrong(field, str(error)) from None
        return found

    return take


def _one_of(known: tuple[object, ...]) -> Convert:
    def take(value: object, field: str) -> object:
        # Python has True for 1, JSON has not.
        if not any(type(value) is type(one) and value == one for one in known):
            raise _Wrong(field, "is none of the values that are known")
        return value

    return take


def _or_none(inner: Convert) -> Convert:
    return lambda value, field: None if value is None else inner(value, field)


def _rows(value: object, field: str) -> list[object]:
    if not isinstance(value, list):
        raise _Wrong(field, "must be a list")
    return value


def _list(kind: object) -> Convert:
    inner = _converter(kind)
    return lambda value, field: tuple(
        inner(one, f"{field}.{n}".lstrip(".")) for n, one in enumerate(_rows(value, field))
    )


def _row(kinds: tuple[object, ...]) -> Convert:
    inner = [_converter(kind) for kind in kinds]

    def take(value: object, field: str) -> object:
        rows = _rows(value, field)
        if len(rows) != len(inner):
            raise _Wrong(field, f"must have {len(inner)} entries")
        return tuple(one(part, f"{field}.{n}") for n, (one, part) in enumerate(zip(inner, rows, strict=True)))

    return take


def _object(value: object, field: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _Wrong(field, "must be an object")
    return value


def _mapping(key: object, kind: object) -> Convert:
    name, inner = _converter(key), _converter(kind)
    # Without the key in the field's name: it may be any text.
    return lambda value, field: {name(one, field): inner(part, field) for one, part in _object(value, field).items()}


def _of_dataclass(kind: type) -> Convert:
    hints = get_type_hints(kind, include_extras=True)
    own = [(one, _converter(hints[one.name])) for one in fields(kind) if one.init]

    def take(value: object, field: str) -> object:
        there, found = _object(value, field), {}
        for one, inner in own:
            name = one.metadata.get(KEY, one.name)
            place = f"{field}.{name}".lstrip(".")
            name = name if name in there else one.metadata.get(ALSO, name)
            if name in there:
                found[one.name] = inner(there[name], place)
            elif one.default is MISSING and one.default_factory is MISSING:
                raise _Wrong(place, "is missing")
        try:
            return kind(**found)
        except _Wrong:
            raise
        except ValueError as error:
            # A rule between fields, of the dataclass itself.
            raise _Wrong(field, str(error)) from None

    return take
