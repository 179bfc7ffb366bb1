"""Keeps what a test measured about a promise, one file a row, for the table that the docs show."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.paths import ROOT

FOLDER = ROOT / "build" / "promises"


def record(promise: str, attack: str, figure: str, passed: bool) -> None:
    """Write one row; a later run of the same attack replaces it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    slug = re.sub(r"[^a-z0-9]+", "-", attack.lower()).strip("-")[:80]
    row = {"promise": promise, "attack": attack, "figure": figure, "passed": passed, "at": round(time.time())}
    path = FOLDER / f"{promise}-{slug}.json"
    # Cases of one attack run at once.
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(row, ensure_ascii=False) + "\n")
    fresh.replace(path)


@contextmanager
def tallied(promise: str, attack: str, what: str) -> Iterator[dict[str, bool]]:
    """One row for many cases, which have by name whether they held; those that held are counted."""
    cases: dict[str, bool] = {}
    yield cases
    good = sum(cases.values())
    record(promise, attack, f"{good} of {len(cases)} {what}", good == len(cases))
