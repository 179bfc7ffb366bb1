"""Values from a host's answers, of which none can be trusted to be what it should."""

from __future__ import annotations

import json
from collections.abc import Iterator

from vllm_cluster.kernel.text import number_of

MAX_LINE = 1000
# Of a section in JSON. `ip -d` prints 60 for an interface; each takes up to 200 bytes while it is read.
MAX_VALUES = 60_000


def number(text: object) -> int | None:
    """A non-negative integer, None for any other value (``N/A``, nothing, a word)."""
    words = str(text).split()
    return number_of(words[0]) if words else None


def split_fields(text: str, least: int) -> Iterator[list[str]]:
    """The fields, divided by ``|``, of each line that has `least` of them; empty ones follow."""
    for line in text.splitlines():
        fields = line[:MAX_LINE].split("|")
        if len(fields) >= least:
            yield fields + [""] * 12


def mapping(text: object) -> dict[str, object]:
    """A JSON object, empty where there is none."""
    value = parse_json(text) if isinstance(text, str) else text
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[object]:
    """A list, empty where there is none."""
    return value if isinstance(value, list) else []


def parse_json(text: str) -> object:
    """JSON, None where it is broken; brackets within brackets without end are broken too.

    Raises:
        ValueError: it has more values than there can be.
    """
    if sum(map(text.count, ",[{")) > MAX_VALUES:
        raise ValueError(f"a JSON document has more than {MAX_VALUES} values")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
