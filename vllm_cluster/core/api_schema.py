"""Which fields a request to the served model may have, by the schema that its API has of itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_REQUEST = ("post", "requestBody", "content", "application/json", "schema")


def fields_of(openapi: Mapping[str, Any], path: str) -> frozenset[str]:
    """Read the fields of a request to this path; none where the schema does not have it."""
    todo, seen, fields = [_at(openapi, ("paths", path, *_REQUEST))], set[int](), set[str]()
    while todo:
        schema = todo.pop()
        if not isinstance(schema, Mapping) or id(schema) in seen:
            continue
        seen.add(id(schema))
        if isinstance(found := schema.get("properties"), Mapping):
            fields |= found.keys()
        todo += [one for kind in ("anyOf", "oneOf", "allOf") for one in _list(schema.get(kind))]
        todo.append(_at(openapi, str(schema.get("$ref", "")).removeprefix("#/").split("/")))
    return frozenset(fields)


def _at(document: object, steps: Iterable[str]) -> object:
    for step in steps:
        document = document.get(step) if isinstance(document, Mapping) else None
    return document


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
