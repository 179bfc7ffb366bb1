"""Values of options, without pydantic: typer converts each value through it, which takes longer than all the rest."""

from __future__ import annotations

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
    limits = {
        (False, True): f" of at least {least}",
        (True, False): f" of at most {most}",
        (False, False): f" from {least} to {most}",
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
