"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], seconds: float = 90, every: float = 0.2) -> None:
    """Return once the condition holds.

    Raises:
        AssertionError: it did not within `seconds`.
    """
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"it did not become so within {seconds:.0f} s"
        time.sleep(every)
