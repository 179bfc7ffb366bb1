"""One attack on a promise: what was measured is kept, also when the promise did not hold."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support.figures import record


@dataclass
class Measured:
    """What an attack has measured so far; the last line of it is what the table shows."""

    figure: str = "held"
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds since the attack, or since `begin`."""
        return time.monotonic() - self.began

    def begin(self) -> None:
        """Start the clock again: the attack comes now."""
        self.began = time.monotonic()


@contextmanager
def attack(promises: str, what: str) -> Iterator[Measured]:
    """Attack one promise, or several (`P1 P17`); a failed assertion inside is a row that has it."""
    measured = Measured()
    try:
        yield measured
    except BaseException as error:
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        for promise in promises.split():
            record(promise, what, f"broken: {reason[:160]}", False)
        raise
    for promise in promises.split():
        record(promise, what, measured.figure, True)
