"""How long something takes, by the clock that counts since the host started: no step of the wall clock changes it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_seconds() -> float:
    """Seconds since the host started, time asleep included; every container of the host sees the same."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def mark() -> list[Any]:
    """This moment, to be written into a file for `since`."""
    return [_boot(), boot_seconds()]


def since(marked: object) -> float | None:
    """Seconds since a mark; None where the host was started again since, or where it is not a mark."""
    match marked:
        case [str(boot), int() | float() as began] if boot and boot == _boot():
            return round(boot_seconds() - began, 3)
    return None


def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
