"""Time that passes only while one waits."""

from __future__ import annotations


class Clock:
    """Time passes while one sleeps."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float, /) -> None:
        self.now += seconds
