"""Values of options, without pydantic: typer converts each value through it, which takes longer than all the rest."""

from __future__ import annotations

import math
import re
import types
from pathlib import Path
from typing import Union, get_args, get_origin

import typer

# The metavar of an option in seconds, which are also written with units.
DURATION = "DURATION"


def convert(
    kind: object, value: object, *, least: float | None = None, most: float | None = None, metavar: str | None = None
) -> object:
    """The value of an option or argument of this type.

    Raises:
        typer.BadParameter: it is of another type, or out of its range.
    """
    if value is None:
        return None
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(one for one in get_args(kind) if one is not type(None))
    if get_origin(kind) is list:
        (element,) = get_args(kind)
        return [
            convert(element, one, least=least, most=most) for one in (value if isinstance(value, list | tuple) else ())
        ]
    if metavar == DURATION:
        number = value if isinstance(value, int | float) else seconds(str(value))
        return _in_range(number, "a duration", value, least, most)
    if kind is int or kind is float:
        return _number(kind, value, least, most)
    return Path(str(value)) if kind is Path else _text(value)


def _text(value: object) -> object:
    """A word of the command line: one that is not UTF-8 cannot be sent anywhere, and only files have such names."""
    if isinstance(value, str):
        raw = value.encode("utf-8", "surrogateescape")
        shown = raw.decode("utf-8", "backslashreplace")
        if raw != shown.encode():
            raise typer.BadParameter(f"must be UTF-8 text, got '{shown}'")
    return value


def _number(kind: type[int] | type[float], value: object, least: float | None, most: float | None) -> int | float:
    what = "an integer" if kind is int else "a number"
    try:
        number = kind(str(value))
    except ValueError:
        number = math.nan
    return _in_range(number, what, value, least, most)


def _in_range(number: float, what: str, value: object, least: float | None, most: float | None) -> int | float:
    show = written if what == "a duration" else "{:.10g}".format
    low, high = (show(limit) if limit is not None else "" for limit in (least, most))
    limits = {
        (False, True): f" of at least {low}",
        (True, False): f" of at most {high}",
        (False, False): f" from {low} to {high}",
    }
    # Written so that NaN is out of every range.
    if math.isnan(number) or not ((least is None or number >= least) and (most is None or number <= most)):
        raise typer.BadParameter(f"must be {what}{limits.get((least is None, most is None), '')}, got {value!r}")
    return number


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(s|m|h|d)")


def written(number: float) -> str:
    """A number of seconds as a person writes it: 90s, 10m, 1h."""
    unit = max((one for one in _UNITS if number and number % _UNITS[one] == 0), key=_UNITS.__getitem__, default="s")
    return f"{number / _UNITS[unit]:.10g}{unit}"


def seconds(text: str) -> float:
    """The seconds of a duration.

    Raises:
        typer.BadParameter: it is none.
    """
    if re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?", text):
        return float(text)
    if not text or _DURATION.sub("", text):
        raise typer.BadParameter(f"must be a duration such as 90s, 10m or 1h30m, got {text!r}")
    return sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(text))
