"""Time that passes only when somebody waits."""

from __future__ import annotations

from collections.abc import Callable

EPOCH = 1_700_000_000.0


class Clock:
    """Stands in for the module `time`; `passed` is told after every step."""

    def __init__(self) -> None:
        self.now = 0.0
        self.passed: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        """Seconds since the world began."""
        return self.now

    def time(self) -> float:
        """The controller's own clock; hosts have theirs."""
        return EPOCH + self.now

    def time_ns(self) -> int:
        """As `time`, in nanoseconds."""
        return int(self.time() * 1e9)

    def sleep(self, seconds: float) -> None:
        """Let time pass, in steps small enough for nodes to act in between."""
        end, step = self.now + seconds, max(0.5, seconds / 16)
        while self.now < end:
            self.now = min(end, self.now + step)
            self.passed()
