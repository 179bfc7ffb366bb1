"""Time as the program sees it: a clock that counts time asleep, and the moment by which a call must end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

# The clock that continues while the machine is suspended. time.monotonic() stops then, on Linux and on macOS: whoever
# measured with it would take a lease for his own that its host gave away during the sleep.
if sys.platform == "linux":
    BOOT_CLOCK = time.CLOCK_BOOTTIME
else:
    BOOT_CLOCK = time.CLOCK_MONOTONIC


class Clock(Protocol):
    """What a verb asks of time."""

    def monotonic(self) -> float:
        """Seconds since some moment, time asleep included."""
        ...

    def time(self) -> float:
        """Seconds since 1970."""
        ...

    def sleep(self, seconds: float, /) -> None:
        """Wait."""
        ...


class SystemClock:
    """The clock of this machine; `read` answers for one of the kernel's clocks."""

    def __init__(self, read: Callable[[int], float] = time.clock_gettime) -> None:
        self._read = read

    def monotonic(self) -> float:
        """Seconds since the machine was started, time asleep included."""
        return self._read(BOOT_CLOCK)

    def time(self) -> float:
        """Seconds since 1970."""
        return self._read(time.CLOCK_REALTIME)

    def sleep(self, seconds: float, /) -> None:
        """Wait."""
        time.sleep(seconds)


SYSTEM_CLOCK = SystemClock()


@dataclass(frozen=True)
class Deadline:
    """A moment on a clock by which something must be done."""

    at: float
    clock: Clock = field(default=SYSTEM_CLOCK, repr=False, compare=False)

    @classmethod
    def after(cls, seconds: float, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        """The moment `seconds` from now."""
        return cls(clock.monotonic() + seconds, clock)

    def left(self) -> float:
        """Seconds that remain, never negative."""
        return max(0.0, self.at - self.clock.monotonic())

    def sooner(self, seconds: float) -> Deadline:
        """The earlier of this deadline and `seconds` from now."""
        return Deadline(min(self.at, self.clock.monotonic() + seconds), self.clock)


# A wait that ends so much too late was of a process that was stopped meanwhile, or of a machine that slept.
LATE_SECONDS = 1.0


def was_stopped(since: float, wait: float | None) -> bool:
    """Whether a wait of so many seconds, since that moment of the system clock, took much longer.

    What the other side did meanwhile is not known yet, so that its time begins again.
    """
    return wait is not None and SYSTEM_CLOCK.monotonic() - since > wait + LATE_SECONDS


class Due(Protocol):
    """What a wait asks of its deadline."""

    def left(self) -> float:
        """Seconds that remain, never negative."""
        ...


class MovingDeadline:
    """A deadline that progress puts off: so many seconds of `silence` after the last one, and never beyond `whole`.

    Who waits for another machine has one: only an amount that was not there before is progress.
    """

    def __init__(self, silence: float, whole: Deadline) -> None:
        self._silence, self._whole, self._most = silence, whole, 0
        self._next = whole.sooner(silence)

    def move(self, amount: int) -> None:
        """Note how far it is."""
        if amount > self._most:
            self._most, self._next = amount, self._whole.sooner(self._silence)

    def left(self) -> float:
        """Seconds that remain, never negative."""
        return self._next.left()
