"""The file of the API key, which `vcluster endpoint --rotate` may rewrite at any time."""

from __future__ import annotations

import time

# Else the file is the key, in any form: a person may have thought it up. core/kept.py writes this form.
MARK = b"#vcluster-keys\n"
FIELDS = 2


def keys(content: bytes, now: float | None = None) -> list[bytes]:
    """The keys that are valid, the one to use first: `KEY ID` in the second line, then `KEY UNTIL` each."""
    if not content.startswith(MARK):
        return [content.strip()] if content.strip() else []
    lines = [line.split() for line in content[len(MARK) :].splitlines(keepends=True) if line.endswith(b"\n")]
    rows = [fields for fields in lines if len(fields) == FIELDS]
    now = time.time() if now is None else now
    return [fields[0] for place, fields in enumerate(rows) if place == 0 or _number(fields[1]) > now]


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
