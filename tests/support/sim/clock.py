"""Time that passes only when a program waits, and a controller that sleeps meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable

from vllm_cluster.kernel.clock import BOOT_CLOCK, SystemClock

EPOCH = 1_700_000_000.0


class Clock(SystemClock):
    """The product's own clock over a kernel's that the world turns; `passed` is called after every step.

    `now` is the hosts' time. While the controller is suspended, its CLOCK_MONOTONIC stops.
    """

    def __init__(self) -> None:
        super().__init__(self.read)
        self.now = 0.0
        self.asleep = 0.0
        self.passed: Callable[[], None] = lambda: None

    def read(self, clock: int) -> float:
        """What the controller's kernel answers."""
        if clock == time.CLOCK_REALTIME:
            return EPOCH + self.now
        return self.now if clock == BOOT_CLOCK else self.now - self.asleep

    def suspend(self, seconds: float) -> None:
        """Close the laptop's lid for so long: the hosts continue, and nothing of the controller does."""
        self.asleep += seconds
        self.sleep(seconds)

    def sleep(self, seconds: float) -> None:
        """Let time pass, in steps small enough for nodes to act in between."""
        end, step = self.now + seconds, max(0.5, seconds / 16)
        while self.now < end:
            self.now = min(end, self.now + step)
            self.passed()
