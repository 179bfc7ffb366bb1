"""Ends processes without waiting for them: asked first, made to after a while."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

# After SIGKILL, until what is left counts as what will not end: a process in the kernel's hands may never do.
KILL_SECONDS = 5.0


class Ending:
    """The end of some processes; `look` does what is due."""

    def __init__(self, alive: Callable[[], list[int]], grace: Callable[[], float]) -> None:
        self._alive, self._grace = alive, grace
        self._began, self._killed = time.monotonic(), 0.0
        self._send(alive(), signal.SIGTERM)

    def look(self) -> tuple[list[int], bool]:
        """Return what has not ended, and whether it is over: nothing is left, or what is left will not end."""
        left, now = self._alive(), time.monotonic()
        # The grace may shrink meanwhile.
        if left and now - self._began >= self._grace():
            self._killed = self._killed or now
            self._send(left, signal.SIGKILL)
        return left, not left or (self._killed > 0 and now - self._killed >= KILL_SECONDS)

    @staticmethod
    def _send(pids: list[int], number: signal.Signals) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
