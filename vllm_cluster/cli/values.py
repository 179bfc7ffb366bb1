"""Values of options, without pydantic: typer converts each value through it, which takes longer than all the rest."""

from __future__ import annotations

import re
import types
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import typer


def convert(annotation: Any, value: Any, *, least: float | None = None, most: float | None = None) -> Any:
    """The value of an option or argument of this type.

    Raises:
        typer.BadParameter: it is of another type, or out of its range.
    """
    if value is None:
        return None
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(one for one in get_args(annotation) if one is not type(None))
    if get_origin(annotation) is list:
        (element,) = get_args(annotation)
        return [convert(element, one, least=least, most=most) for one in value]
    if annotation in (int, float):
        return _number(annotation, value, least, most)
    return Path(value) if annotation is Path else value


def _number(kind: type[int] | type[float], value: Any, least: float | None, most: float | None) -> int | float:
    what = "an integer" if kind is int else "a number"
    low, high = (f"{limit:.10g}" if limit is not None else "" for limit in (least, most))
    limits = {
        (False, True): f" of at least {low}",
        (True, False): f" of at most {high}",
        (False, False): f" from {low} to {high}",
    }
    text = f"must be {what}{limits.get((least is None, most is None), '')}, got {value!r}"
    try:
        number = kind(value)
    except ValueError:
        raise typer.BadParameter(text) from None
    # Written so that NaN is out of every range.
    if not ((least is None or number >= least) and (most is None or number <= most)):
        raise typer.BadParameter(text)
    return number


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(s|m|h|d)")


def duration(text: str) -> str:
    """A duration such as 90s, 10m, 1h30m or 2d, or a number of seconds, as it was written.

    Raises:
        typer.BadParameter: it is none.
    """
    seconds(text)
    return text


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
